import argparse
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from captioning import Captioner
from captioning.cli.main import _COMMANDS, _TRAINING_COMMANDS, main
from captioning.cli.parser import with_flag_names
from captioning.generation import GenerationConfig
from captioning.preprocessing.tokenizer import tokenize
from captioning.visualization.colormaps import COLORMAPS
from captioning.visualization.formats import FORMATS


@pytest.fixture
def model(captioner: Captioner, tmp_path: Path) -> str:
    path = tmp_path / "model.safetensors"
    captioner.save(path)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], list[str]]:
    """Run a command; return exit code, lines of stdout, lines of stderr."""
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


def test_files_directories_and_globs_yield_each_image_once(
    model: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "directory"
    (directory / "inner").mkdir(parents=True)
    for name in ("b.png", "a.JPG", "inner/c.webp"):
        with (directory / name).open("wb") as file:
            Image.new("RGB", (20, 10)).save(file, {"G": "JPEG", "g": "PNG", "p": "WEBP"}[name[-1]])
    (directory / "notes.txt").write_text("not an image")
    code, out, _ = run(capsys, "caption", str(directory), str(directory / "*.png"), str(photo), "--model", model)
    assert code == 0
    names = [Path(line.split("\t")[0]).name for line in out]
    assert names == ["a.JPG", "b.png", "c.webp", "photo.jpg"]


@pytest.mark.parametrize("mode", ["expectation", "argmax", "sample"])
def test_attention_mode_of_a_hard_model(
    hard_captioner: Captioner, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    path = tmp_path / "hard.safetensors"
    hard_captioner.save(path)
    images = str(drawn / "images")
    arguments = ("caption", images, "--model", str(path), "--attention-mode", mode, "--seed", "4", "--json")
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    captions = Captioner.from_pretrained(path, attention_mode=mode, seed=4)(sorted((drawn / "images").iterdir()))
    assert [json.loads(line)["caption"] for line in out] == [caption.text for caption in captions]


def test_seed_out_of_range(model: str, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "caption", str(photo), "--model", model, "--seed", "99999999999999999999")
    assert code == 2
    assert err == ["captioning: error: --seed must be in [0, 9223372036854775807], got 99999999999999999999"]


def test_soft_attention_refuses_an_attention_mode(model: str, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "caption", str(photo), "--model", model, "--attention-mode", "argmax")
    assert code == 2
    assert len(err) == 1
    assert "requires hard attention" in err[0]


def test_num_return_sequences(model: str, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("caption", str(photo), "--model", model, "--num-beams", "4", "--num-return-sequences", "3")
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    caption = Captioner.from_pretrained(model, num_beams=4, num_return_sequences=3)(photo)
    expected = [caption.text, *(alternative.text for alternative in caption.alternatives)]
    assert len(set(expected)) == 3
    assert out == [f"{photo}\t{text}" for text in expected]
    _, out, _ = run(capsys, *arguments, "--json")
    assert [alternative["caption"] for alternative in json.loads(out[0])["alternatives"]] == expected[1:]
    code, _, err = run(capsys, *arguments, "--num-beams", "2")
    assert (code, err) == (
        2,
        ["captioning: error: --num-return-sequences must be in [1, 2], got 3; increase --num-beams or set --do-sample"],
    )


def test_sampling_depends_on_the_seed(model: str, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "caption",
        str(photo),
        "--model",
        model,
        "--do-sample",
        "--temperature",
        "1.5",
        "--num-return-sequences",
        "8",
    )
    sampled = [run(capsys, *arguments, "--seed", seed)[1] for seed in ("1", "1", "2")]
    assert sampled[0] == sampled[1] != sampled[2]
    assert len(set(sampled[0])) > 1
    greedy = run(capsys, *arguments, "--top-k", "1")[1]
    assert len(set(greedy)) == 1, "top-k 1 is deterministic"
    code, _, err = run(capsys, *arguments, "--top-p", "0")
    assert (code, err) == (2, ["captioning: error: --top-p must be > 0, got 0.0"])


def test_every_generation_setting_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("caption", "compress"):
        _, out, _ = run(capsys, command, "--help")
        flags = set(" ".join(out).replace("[", " ").split())
        assert {"--" + field.name.replace("_", "-") for field in dataclasses.fields(GenerationConfig)} <= flags


def test_help_lists_formats_and_colormaps(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "caption", "--help")
    for name in (*FORMATS, *COLORMAPS):
        assert name in " ".join(out)


def test_json(model: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overlays = tmp_path / "new" / "overlays"
    code, out, _ = run(capsys, "caption", str(photo), "--model", model, "--json", "--overlay-dir", str(overlays))
    result = json.loads(out[0])
    assert code == 0
    assert result["image"] == str(photo)
    assert [entry["word"] for entry in result["words"]] == result["caption"].split()
    assert all(0 <= entry["probability"] <= 1 for entry in result["words"])
    assert 0 <= result["score"] <= 1
    with Image.open(result["overlay"]["png"]) as overlay:
        assert overlay.format == "PNG"


def test_overlays_of_equal_file_names_get_unique_names(
    model: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "photo.jpg").write_bytes(photo.read_bytes())
    images = [str(tmp_path / "one"), str(tmp_path / "two")]
    overlays = tmp_path / "overlays"
    code, _, err = run(capsys, "caption", *images, "--model", model, "--overlay-dir", str(overlays))
    assert (code, err) == (0, [f"overlays: {overlays / 'index.html'}"])
    assert sorted(path.name for path in overlays.glob("*.png")) == ["photo-2.png", "photo.png"]


def test_overlay_formats_and_options(
    model: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overlays = tmp_path / "overlays"
    arguments = ("caption", str(photo), "--model", model, "--overlay-dir", str(overlays), "--json")
    style = ("--colormap", "hot", "--opacity", "0.5", "--panel-width", "100")
    code, out, err = run(capsys, *arguments, "--overlay-format", "html, png", *style)
    assert (code, err) == (0, [f"overlays: {overlays}"])
    assert json.loads(out[0])["overlay"] == {name: str(overlays / f"photo.{name}") for name in ("html", "png")}
    assert sorted(path.name for path in overlays.glob("[!.]*")) == ["photo.html", "photo.png"]
    expected = Captioner.from_pretrained(model)(photo).overlay(panel_width=100, colormap="hot", opacity=0.5)
    with Image.open(overlays / "photo.png") as overlay:
        assert list(overlay.getdata()) == list(expected.getdata())


def test_an_overlay_that_cannot_be_written_does_not_stop_the_rest(
    model: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its caption is still printed. The gallery lists unreadable images with their error."""
    (tmp_path / "broken.jpg").write_text("x")
    (tmp_path / "last.jpg").write_bytes(photo.read_bytes())
    overlays = tmp_path / "overlays"
    (overlays / "photo.png").mkdir(parents=True)
    images = [str(photo), str(tmp_path / "broken.jpg"), str(tmp_path / "last.jpg")]
    code, out, err = run(capsys, "caption", *images, "--model", model, "--overlay-dir", str(overlays))
    assert code == 2
    assert [line.split("\t")[0] for line in out] == [images[0], images[2]]
    assert err[0].startswith(f"captioning: error: {overlays / 'photo.png'}: exists and was not written by")
    assert err[1].startswith(f"captioning: error: {images[1]}: ")
    gallery = (overlays / "index.html").read_text()
    assert [name in gallery for name in ("photo.jpg", "broken.jpg", "last.jpg")] == [False, True, True]


def test_unreadable_images_are_reported_and_the_rest_captioned(
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
        (("caption", "PHOTO", "--model", "none.safetensors"), "none.safetensors: model file not found"),
        (("caption", "PHOTO", "--model", "PHOTO"), "not a"),
        (("caption", "PHOTO", "--model", "MODEL", "--overlay-dir", "PHOTO"), "cannot create the output directory"),
        (("caption", "PHOTO", "--model", "MODEL", "--batch-size", "0"), "--batch-size must be >= 1"),
        (("caption", "PHOTO", "--overlay-format", "png"), "--overlay-format: has no effect without --overlay-dir"),
        (("caption", "PHOTO", "--colormap", "hot", "--panel-width", "9"), "--colormap, --panel-width: has no effect"),
        (
            ("caption", "PHOTO", "--overlay-dir", "EMPTY", "--overlay-format", "png,tiff"),
            "'tiff'",
        ),
        (("caption", "PHOTO", "--overlay-dir", "EMPTY", "--colormap", "jet"), "'jet'"),
        (("caption", "PHOTO", "--overlay-dir", "EMPTY", "--opacity", "75"), "opacity"),
        (("caption", "PHOTO", "--overlay-dir", "EMPTY", "--panel-width", "0"), "panel"),
        (("caption", "EMPTY", "--model", "MODEL"), "no images in this directory"),
        (("make-shapes", "FULL"), "exists and is not empty"),
        (("make-shapes", "EMPTY", "--num-images", "0"), "--num-images must be >= 1, got 0"),
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


def test_make_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "make-shapes", str(tmp_path / "set"), "--num-images", "4", "--seed", "2")
    assert code == 0
    assert str(tmp_path / "set") in out[0]
    content = json.loads((tmp_path / "set" / "dataset.json").read_text())
    assert len(content["images"]) == len(list((tmp_path / "set" / "images").iterdir())) == 4
    sentence = content["images"][0]["sentences"][0]
    assert sentence["tokens"] == tokenize(sentence["raw"])


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_captioning_imports_no_lightning(model: str, photo: Path) -> None:
    """--help does not import torch either."""
    check = "import sys; assert not [name for name in sys.modules if name.split('.')[0] in {}], 'imported'"
    lightning = ("pytorch_lightning", "lightning_fabric", "torchmetrics", "jsonargparse")
    scripts = (
        "import captioning; captioning.Captioner; " + check.format(lightning),
        f"from captioning.cli.main import main; main(['caption', {str(photo)!r}, '--model', {model!r}]); "
        + check.format(lightning),
        "import captioning.cli.main as c\ntry: c.main(['--help'])\nexcept SystemExit: pass\n"
        + check.format((*lightning, "torch")),
    )
    for script in scripts:
        result = python(script)
        assert result.returncode == 0, result.stderr


def test_help_is_fast_and_lists_every_command() -> None:
    durations = []
    for _ in range(3):
        start = time.perf_counter()
        result = subprocess.run(
            [sys.executable, "-m", "captioning", "--help"], capture_output=True, text=True, check=True
        )
        durations.append(time.perf_counter() - start)
    for command in (*_COMMANDS, *_TRAINING_COMMANDS):
        assert command in result.stdout
    assert min(durations) < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "captoin photo.jpg",
            "unknown command 'captoin' (did you mean caption?); 'captioning --help' lists the commands",
        ),
        ("{photo}", "unknown command '{photo}' (did you mean 'captioning caption {photo}'?)"),
        ("caption {photo} --modle x", "unknown option --modle (did you mean --model?); 'captioning caption --help'"),
        ("caption {photo} --num-beams five", "--num-beams: expected a whole number, got 'five'; 'captioning caption"),
        ("caption --model {model} {photo}", "no images: --model takes all values after it; put {photo} before --model"),
        ("caption {photo} --model {model} --num-return-sequences 5", "--num-return-sequences must be in [1, 1], got 5"),
    ],
)
def test_errors_name_the_nearest_option(
    arguments: str, message: str, model: str, photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, (error,) = run(capsys, *(word.format(photo=photo, model=model) for word in arguments.split()))
    assert (code, out) == (2, [])
    assert error.startswith("captioning: error: " + message.format(photo=photo, model=model))


def test_paths_in_messages_keep_their_names() -> None:
    options = argparse.Namespace(overlay_dir=None, do_sample=None)
    for path in ("overlay_dir/photo.jpg: no such file", "/a/do_sample: no such file", "do_sample.jpg: no such file"):
        assert with_flag_names(path, options) == path
    assert with_flag_names("increase it, or set do_sample.", options) == "increase it, or set --do-sample."
