"""The wheel, installed in an environment without the repository, captions an image."""

import os
import subprocess
import sys
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
