"""The wheel, installed in an environment without the repository, captions an image."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import skimage

from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that a wheel of the repository is installed in; dependencies come from this environment."""
    directory = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), str(REPOSITORY)]
    subprocess.run([*pip, *build], check=True, capture_output=True)
    (wheel,) = directory.glob("captioning-*.whl")
    target = directory / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True, capture_output=True)
    return target


def test_the_wheel_contains_types_weights_and_assets(installed: Path) -> None:
    (wheel,) = installed.parent.glob("captioning-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "captioning/py.typed" in names
    assert any(name.startswith("captioning/models/pretrained/") and name.endswith(".safetensors") for name in names)
    assert "captioning/serving/static/index.html" in names
    assert "captioning/visualization/assets/viewer.js" in names
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)


def test_the_installed_wheel_captions_an_image(installed: Path, tmp_path: Path) -> None:
    script = "import captioning; print(captioning.__file__); from captioning.cli.main import main; main()"
    image = Path(skimage.data_dir) / "astronaut.png"
    result = subprocess.run(
        [sys.executable, "-c", script, "caption", str(image), "--overlay-dir", "overlays"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    location, caption = result.stdout.splitlines()
    assert Path(location).is_relative_to(installed)
    assert len(caption.split("\t")[1].split()) > 3
    assert (tmp_path / "overlays" / "astronaut.png").is_file()


_USER_SCRIPT = """
from pathlib import Path
from typing import assert_type

from captioning import Caption, Captioner, CaptioningError, list_pretrained

captioner = Captioner.from_pretrained(list_pretrained()[0], device="cpu")
paths: list[str] = ["a.jpg"]
assert_type(captioner("a.jpg"), Caption)
assert_type(captioner(Path("a.jpg"), num_beams=3), Caption)
assert_type(captioner(paths, batch_size=2), list[Caption])
assert_type(captioner(Path(path) for path in paths), list[Caption])
assert_type(captioner("a.jpg", errors="return"), Caption | CaptioningError)
assert_type(captioner((b"", "b.jpg"), errors="return"), list[Caption | CaptioningError])
assert_type(captioner("a.jpg").confidence, float | None)
captioner("a.jpg", num_beam=3)
captioner("a.jpg").save(5)
"""
# Stand-ins for large packages: the analysis of torch alone takes a minute.
_STUBS = {
    "numpy": "class ndarray: ...",
    "torch": "class Tensor: ...\nclass device: ...",
    "PIL/Image": "class Image: ...",
    "PIL/__init__": "",
}


def test_mypy_checks_a_script_against_the_wheel(installed: Path, tmp_path: Path) -> None:
    """The types come from the installed package, as marked by py.typed; the errors are those of the last two lines."""
    venv.create(tmp_path / "env", with_pip=False)
    (site_packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site_packages / "wheel.pth").write_text(f"{installed}\n")
    (tmp_path / "script.py").write_text(_USER_SCRIPT)
    for name, text in _STUBS.items():
        path = tmp_path / "stubs" / f"{name}.pyi"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"from typing import Any\n{text}\ndef __getattr__(name: str) -> Any: ...\n")
    python = str(tmp_path / "env" / "bin" / "python")
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(tmp_path / "stubs"), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in result.stdout.splitlines() if ": error: " in line]
    num_lines = len(_USER_SCRIPT.splitlines())
    assert errors[0].startswith(f"script.py:{num_lines - 1}: error: "), result.stdout
    assert 'did you mean "num_beams"?' in errors[0]
    assert errors[-1].startswith(f'script.py:{num_lines}: error: Argument 1 to "save"'), result.stdout
    assert {line.split(":")[1] for line in errors} == {str(num_lines - 1), str(num_lines)}, result.stdout
