import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from captioning import Captioner, cli
from captioning.cli import main
from captioning.export import FORMATS
from captioning.overlay import COLOURS
from captioning.search import Search
from captioning.text import tokenise


@pytest.fixture
def model(captioner: Captioner, tmp_path: Path) -> str:
    path = tmp_path / "model.safetensors"
    captioner.save(path)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], list[str]]:
    """Exit code, lines of stdout, lines of stderr."""
    code = 0
    try:
        main(list(arguments))
    except SystemExit as stop:
        code = int(stop.code or 0)
    output = capsys.readouterr()
    return code, output.out.splitlines(), output.err.splitlines()


def test_prints_path_and_caption(
    model: str, photo: Path, captioner: Captioner, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "caption", str(photo), "--model", model)
    assert (code, out, err) == (0, [f"{photo}\t{captioner(photo).text}"], [])


def test_files_folders_and_globs_each_picture_once(
    model: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    for name in ("b.png", "a.JPG", "inner/c.webp"):
        with (folder / name).open("wb") as file:
            Image.new("RGB", (20, 10)).save(file, {"G": "JPEG", "g": "PNG", "p": "WEBP"}[name[-1]])
    (folder / "notes.txt").write_text("not a picture")
    code, out, _ = run(capsys, "caption", str(folder), str(folder / "*.png"), str(photo), "--model", model)
    assert code == 0
    names = [Path(line.split("\t")[0]).name for line in out]
    assert names == ["a.JPG", "b.png", "c.webp", "photo.jpg"]


@pytest.mark.parametrize("look", ["expect", "argmax", "sample"])
def test_a_hard_model_looks_as_told(
    hard_captioner: Captioner, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], look: str
) -> None:
    path = tmp_path / "hard.safetensors"
    hard_captioner.save(path)
    images = str(drawn / "images")
    arguments = ("caption", images, "--model", str(path), "--look", look, "--seed", "4", "--json")
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    captions = Captioner.load(path, look=look, seed=4)(sorted((drawn / "images").iterdir()))
    assert [json.loads(line)["caption"] for line in out] == [caption.text for caption in captions]


def test_a_seed_that_no_generator_takes(model: str, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "caption", str(photo), "--model", model, "--seed", "99999999999999999999")
    assert code == 2
    assert err == ["captioning: error: --seed 99999999999999999999: take a number from 0 to 9223372036854775807"]


def test_a_soft_model_does_not_look_at_one_place(model: str, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "caption", str(photo), "--model", model, "--look", "argmax")
    assert code == 2
    assert len(err) == 1
    assert "attention is soft" in err[0]


def test_several_captions_of_a_picture(model: str, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("caption", str(photo), "--model", model, "--beam", "4", "--n-best", "3")
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    caption = Captioner.load(model, beam=4, n_best=3)(photo)
    expected = [caption.text, *(other.text for other in caption.others)]
    assert len(set(expected)) == 3
    assert out == [f"{photo}\t{text}" for text in expected]
    _, out, _ = run(capsys, *arguments, "--json")
    assert [other["caption"] for other in json.loads(out[0])["others"]] == expected[1:]
    code, _, err = run(capsys, *arguments, "--beam", "2")
    assert (code, err) == (2, ["captioning: error: n_best 3: take 1 to 2, the size of the beam, or a larger beam"])


def test_captions_by_chance_follow_the_seed(model: str, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("caption", str(photo), "--model", model, "--sample", "--temperature", "1.5", "--n-best", "8")
    drawn = [run(capsys, *arguments, "--seed", seed)[1] for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) > 1
    narrow = run(capsys, *arguments, "--top-k", "1")[1]
    assert len(set(narrow)) == 1, "the likeliest word at each step leaves no choice"
    code, _, err = run(capsys, *arguments, "--nucleus", "0")
    assert (code, err) == (2, ["captioning: error: nucleus 0.0: a share above 0 and up to 1"])


def test_the_command_knows_all_of_the_search() -> None:
    flags = {flag.removeprefix("--").replace("-", "_") for flag in cli._SEARCH}
    assert {"sample", *flags} == {field.name for field in dataclasses.fields(Search)}


def test_help_names_every_format_and_all_colours(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "caption", "--help")
    for name in (*FORMATS, *COLOURS):
        assert name in " ".join(out)


def test_json(model: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overlays = tmp_path / "new" / "overlays"
    code, out, _ = run(capsys, "caption", str(photo), "--model", model, "--json", "--overlay", str(overlays))
    result = json.loads(out[0])
    assert code == 0
    assert result["image"] == str(photo)
    assert [entry["word"] for entry in result["words"]] == result["caption"].split()
    assert all(0 <= entry["probability"] <= 1 for entry in result["words"])
    assert 0 <= result["score"] <= 1
    with Image.open(result["overlay"]["png"]) as overlay:
        assert overlay.format == "PNG"


def test_overlays_of_the_same_name_are_both_kept(
    model: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "photo.jpg").write_bytes(photo.read_bytes())
    pictures = [str(tmp_path / "one"), str(tmp_path / "two")]
    overlays = tmp_path / "overlays"
    code, _, err = run(capsys, "caption", *pictures, "--model", model, "--overlay", str(overlays))
    assert (code, err) == (0, [f"overlays are in {overlays / 'index.html'}"])
    assert sorted(path.name for path in overlays.glob("*.png")) == ["photo-2.png", "photo.png"]


def test_overlays_in_the_formats_asked_for(
    model: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overlays = tmp_path / "overlays"
    arguments = ("caption", str(photo), "--model", model, "--overlay", str(overlays), "--json")
    look = ("--colours", "heat", "--opacity", "0.5", "--panel-width", "100")
    code, out, err = run(capsys, *arguments, "--format", "html, png", *look)
    assert (code, err) == (0, [f"overlays are in {overlays}"])
    assert json.loads(out[0])["overlay"] == {name: str(overlays / f"photo.{name}") for name in ("html", "png")}
    assert sorted(path.name for path in overlays.iterdir()) == ["photo.html", "photo.png"]
    expected = Captioner.load(model)(photo).overlay(panel_width=100, colours="heat", opacity=0.5)
    with Image.open(overlays / "photo.png") as overlay:
        assert list(overlay.getdata()) == list(expected.getdata())


def test_an_overlay_that_cannot_be_written_does_not_stop_the_others(
    model: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is its caption lost; a picture that is broken is in no gallery."""
    (tmp_path / "broken.jpg").write_text("x")
    (tmp_path / "last.jpg").write_bytes(photo.read_bytes())
    overlays = tmp_path / "overlays"
    (overlays / "photo.png").mkdir(parents=True)
    pictures = [str(photo), str(tmp_path / "broken.jpg"), str(tmp_path / "last.jpg")]
    code, out, err = run(capsys, "caption", *pictures, "--model", model, "--overlay", str(overlays))
    assert code == 2
    assert [line.split("\t")[0] for line in out] == [pictures[0], pictures[2]]
    assert err[0].startswith(f"captioning: error: {overlays / 'photo.png'}: cannot be written")
    assert err[1].startswith(f"captioning: error: {pictures[1]}: ")
    gallery = (overlays / "index.html").read_text()
    assert [name in gallery for name in ("photo.jpg", "broken.jpg", "last.jpg")] == [False, False, True]


def test_bad_pictures_are_named_and_the_rest_go_on(
    model: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.jpg").write_bytes(photo.read_bytes()[:600])
    (tmp_path / "empty").mkdir()
    bad = ["missing.jpg", str(tmp_path / "broken.jpg"), str(tmp_path / "empty"), str(tmp_path / "x*.jpg")]
    code, out, err = run(capsys, "caption", *bad, str(photo), "--model", model)
    assert code == 2
    assert [line.split("\t")[0] for line in out] == [str(photo)]
    assert len(err) == len(bad)
    for name in bad:
        assert sum(line.startswith(f"captioning: error: {name}: ") for line in err) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("caption", "PHOTO", "--model", "none.safetensors"), "none.safetensors: no such model file"),
        (("caption", "PHOTO", "--model", "PHOTO"), "not a captioning model file"),
        (("caption", "PHOTO", "--model", "MODEL", "--overlay", "PHOTO"), "cannot be made a folder"),
        (("caption", "PHOTO", "--model", "MODEL", "--batch-size", "0"), "at least 1"),
        (("caption", "PHOTO", "--format", "png"), "--format: of use with --overlay DIR only"),
        (("caption", "PHOTO", "--colours", "heat", "--panel-width", "9"), "--colours, --panel-width: of use with"),
        (
            ("caption", "PHOTO", "--overlay", "EMPTY", "--format", "png,tiff"),
            "unknown format 'tiff'; choose from html,",
        ),
        (("caption", "PHOTO", "--overlay", "EMPTY", "--colours", "jet"), "unknown colours 'jet'"),
        (("caption", "PHOTO", "--overlay", "EMPTY", "--opacity", "75"), "opacity 75.0: take 0"),
        (("caption", "PHOTO", "--overlay", "EMPTY", "--panel-width", "0"), "panel width 0: take 16"),
        (("caption", "EMPTY", "--model", "MODEL"), "no pictures in this folder"),
        (("shapes", "FULL"), "exists and is not empty"),
        (("shapes", "EMPTY", "--images", "0"), "ask for at least 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    model: str,
    photo: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    (tmp_path / "empty").mkdir()
    names = {"PHOTO": str(photo), "MODEL": model, "EMPTY": str(tmp_path / "empty"), "FULL": str(tmp_path)}
    code, out, err = run(capsys, *(names.get(argument, argument) for argument in arguments))
    assert (code, out, len(err)) == (2, [], 1)
    assert message in err[0]


def test_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "shapes", str(tmp_path / "set"), "--images", "4", "--seed", "2")
    assert code == 0
    assert str(tmp_path / "set") in out[0]
    content = json.loads((tmp_path / "set" / "dataset.json").read_text())
    assert len(content["images"]) == len(list((tmp_path / "set" / "images").iterdir())) == 4
    sentence = content["images"][0]["sentences"][0]
    assert sentence["tokens"] == tokenise(sentence["raw"])


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_captioning_imports_no_lightning(model: str, photo: Path) -> None:
    """Nor does --help import torch."""
    check = "import sys; assert not [name for name in sys.modules if name.split('.')[0] in {}], 'imported'"
    lightning = ("pytorch_lightning", "lightning_fabric", "torchmetrics", "jsonargparse")
    scripts = (
        "import captioning; captioning.Captioner; " + check.format(lightning),
        f"from captioning.cli import main; main(['caption', {str(photo)!r}, '--model', {model!r}]); "
        + check.format(lightning),
        "import captioning.cli as c\ntry: c.main(['--help'])\nexcept SystemExit: pass\n"
        + check.format((*lightning, "torch")),
    )
    for script in scripts:
        result = python(script)
        assert result.returncode == 0, result.stderr


def test_help_is_quick_and_names_every_command() -> None:
    durations = []
    for _ in range(3):
        begin = time.perf_counter()
        result = subprocess.run(
            [sys.executable, "-m", "captioning", "--help"], capture_output=True, text=True, check=True
        )
        durations.append(time.perf_counter() - begin)
    for command in ("caption", "serve", "shapes", "fit", "validate", "test", "predict"):
        assert command in result.stdout
    assert min(durations) < 1
