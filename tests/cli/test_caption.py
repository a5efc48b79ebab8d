"""``captioning caption``: inputs other than files, sidecars, ensembles, uncertain captions, early checks."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from captioning import Captioner
from captioning.cli.main import main
from captioning.models.calibration import Calibration
from tests.conftest import make_captioner


@pytest.fixture
def model(captioner: Captioner, tmp_path: Path) -> str:
    path = tmp_path / "model.safetensors"
    captioner.save(path)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], list[str]]:
    code = 0
    try:
        main(["caption", *arguments])
    except SystemExit as stop:
        code = int(stop.code or 0)
    output = capsys.readouterr()
    return code, output.out.splitlines(), output.err.splitlines()


def test_standard_input(
    model: str, captioner: Captioner, photo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(photo.read_bytes())))
    assert run(capsys, "-", str(photo), "--model", model) == (
        0,
        [f"-\t{captioner(photo).text}", f"{photo}\t{captioner(photo).text}"],
        [],
    )
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"no image")))
    code, out, (error,) = run(capsys, "-", "--model", model)
    assert (code, out) == (2, [])
    assert "cannot be read as an image" in error


def test_xmp_sidecars(
    model: str, captioner: Captioner, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = photo.read_bytes()
    code, (line,), _ = run(capsys, str(photo), "--model", model, "--write", "xmp", "--json")
    sidecar = tmp_path / "photo.jpg.xmp"
    assert (code, json.loads(line)["sidecar"]) == (0, str(sidecar))
    assert f">{captioner(photo).text}<" in sidecar.read_text("utf-8")
    assert photo.read_bytes() == content
    assert run(capsys, str(photo), "--model", model, "--write", "xmp")[2] == [
        "sidecars: 1 written beside the images"
    ], "its own sidecar is replaced"
    corrected = sidecar.read_text("utf-8").replace(captioner(photo).text, "our hotel in Rome")
    for content_of_others in ("<edits of another program/>", corrected):
        sidecar.write_text(content_of_others, "utf-8")
        code, out, errors = run(capsys, str(photo), "--model", model, "--write", "xmp")
        assert (code, len(out)) == (2, 1)
        assert "photo.jpg.xmp: " in errors[0]
        assert errors[0].endswith("; it is kept")
        assert sidecar.read_text("utf-8") == content_of_others
    sidecar.rename(tmp_path / "photo.xmp")
    assert "photo.xmp: contains a desc" in run(capsys, str(photo), "--model", model, "--write", "xmp")[2][0]
    assert not sidecar.exists()


def test_overlays_never_replace_files_of_others(
    model: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The overlay photo.png of photo.jpg would replace another photo."""
    photos = tmp_path / "photos"
    photos.mkdir()
    other = photos / "photo.png"
    Image.new("RGB", (40, 30)).save(other)
    content = other.read_bytes()
    (photos / "photo.jpg").write_bytes(photo.read_bytes())
    arguments = [str(photos), "--model", model, "--overlay-dir", str(photos)]
    code, out, errors = run(capsys, *arguments)
    assert (code, len(out)) == (2, 2)
    assert "photo.png: exists and was not written by captioning; it is kept" in errors[0]
    assert other.read_bytes() == content


def test_a_second_run_does_not_caption_the_overlays_of_the_first(
    model: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.jpg").write_bytes(photo.read_bytes())
    (photos / "b.jpg").write_bytes(photo.read_bytes())
    arguments = [str(photos), "--model", model, "--overlay-dir", str(photos / "overlays"), "--overlay-format"]
    first = run(capsys, *arguments, "png,frames")
    assert (first[0], len(first[1])) == (0, 2)
    assert run(capsys, *arguments, "png,frames") == first


def test_json_lists_images_that_fail(
    model: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "half.jpg").write_bytes(photo.read_bytes()[:-400])
    images = [str(tmp_path / "empty.jpg"), str(photo), str(tmp_path / "half.jpg")]
    code, lines, _ = run(capsys, *images, "--model", model, "--json")
    rows = [json.loads(line) for line in lines]
    assert (code, [row["image"] for row in rows]) == (2, images)
    assert rows[0]["error"].endswith("cannot be read as an image (the file is empty)")
    assert rows[2]["error"].endswith("(the file is incomplete; copy or download it again)")


def test_an_ensemble(model: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.safetensors"
    make_captioner(context_gate="none").save(other)
    code, out, _ = run(capsys, str(photo), "--model", model, str(other))
    assert (code, out) == (0, [f"{photo}\t{Captioner.from_pretrained([model, other])(photo).text}"])


def test_uncertain_captions_are_marked(
    captioner: Captioner, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captioner.calibration = Calibration(1.0, 0.0, cider_d_threshold=0.5, min_confidence=1.0)
    captioner.save(tmp_path / "calibrated.safetensors")
    arguments = (str(photo), "--model", str(tmp_path / "calibrated.safetensors"))
    assert run(capsys, *arguments)[1] == [f"{photo}\t{captioner(photo).text}\tnot sure"]
    values = json.loads(run(capsys, *arguments, "--json")[1][0])
    assert (values["is_uncertain"], values["confidence"]) == (
        True,
        pytest.approx(captioner(photo).confidence, abs=1e-4),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no images given; expected image files"),
        (("--model", "MODEL", "PHOTO"), "no images: --model takes all values after it; put "),
        (("none.jpg",), "none.jpg: no such file"),
        (("PHOTO", "--model", "none.safetensors"), "model file not found"),
        (("PHOTO", "--top-p", "0"), "--top-p must be > 0, got 0.0"),
        (("-", "--write", "xmp"), "--write xmp requires image files"),
    ],
)
def test_bad_arguments_fail_before_a_model_is_loaded(
    model: str,
    photo: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr(Captioner, "from_pretrained", None)
    names = {"PHOTO": str(photo), "MODEL": model}
    code, out, (error,) = run(capsys, *(names.get(argument, argument) for argument in arguments))
    assert (code, out) == (2, [])
    assert message in error
