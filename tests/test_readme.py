"""The README's commands, run one after the other as a newcomer would; only the training is made short."""

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import skimage
import yaml

from captioning import datasets
from captioning.cli.main import main
from captioning.models.encoder import BACKBONES
from tests.conftest import REPOSITORY

QUIET = ["--trainer.enable_progress_bar", "false"]
# What makes a command short: few pictures, two epochs. Everything else is as it stands in the README.
SHORT = {
    "fit": ["--trainer.max_epochs", "2", *QUIET],
    # A model that is trained so little says "a a a", and articles have no maps to be checked.
    "validate": [*QUIET, "--model.search.no_repeat_ngram_size", "1", "--model.search.min_length", "6"],
    "test": QUIET,
    "predict": QUIET,
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)


def stand_in_for_photos(folder: Path, drawn: Path) -> None:
    """Drawn scenes as if they were photos: nothing says what is really on them."""
    folder.mkdir(parents=True)
    (folder / "images").symlink_to(drawn / "images")
    rows = [
        {"image": record.image.name, "captions": record.captions, "split": record.split}
        for record in datasets.read(drawn)
    ]
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))


def test_commands_and_python(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    (tmp_path / "photo.jpg").symlink_to(Path(skimage.data_dir) / "rocket.jpg")
    stand_in_for_photos(tmp_path / "sets" / "flickr8k", drawn)
    monkeypatch.setenv("CAPTIONING_DATA_DIR", str(tmp_path / "sets"))
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]
    subcommands = [command[1] for command in commands]
    assert subcommands == [
        *("caption", "caption", "caption", "caption", "caption", "caption", "caption"),
        *("shapes", "data", "fit", "test", "fit", "validate", "caption"),
        *("fit", "test", "caption", "predict", "score"),
        *("fit", "validate", "slim", "fit", "fit", "fit", "fit"),
    ]
    for program, subcommand, *arguments in commands:
        assert program == "captioning"
        scenes = ["--data.scenes", "60"] if any("configs/shapes" in argument for argument in arguments) else []
        main([subcommand, *arguments, *scenes, *SHORT.get(subcommand, [])])
    output = capsys.readouterr().out
    assert "test/pointing" in output
    assert "val/meteor" in output
    assert "most attended less random" in output
    assert (tmp_path / "runs/shapes-soft/version_0/checkpoints/best-maps-val.png").is_file()
    assert list((tmp_path / "runs" / "shapes-soft").glob("version_*/events.*"))
    assert (tmp_path / "my-model.safetensors").stat().st_size < 25e6
    assert (tmp_path / "captions.jsonl").read_text().count("\n") > 0
    assert len(list((tmp_path / "overlays").glob("*.png"))) == 60
    assert (tmp_path / "overlays" / "index.html").is_file()
    looks = {path.name for path in (tmp_path / "looks").iterdir()}
    assert looks == {"photo", *(f"photo.{suffix}" for suffix in ("html", "gif", "png", "npz", "json"))}

    (script,) = blocks("python")
    exec(compile(script, "README.md", "exec"), {})  # the newcomer's own session
    assert (tmp_path / "overlay.png").is_file()
    words, rows, columns = re.search(r"\((\d+), (\d+), (\d+)\)", capsys.readouterr().out).groups()
    assert (int(rows), int(columns)) == (8, 8)
    assert int(words) > 0


def test_the_server_and_what_it_is_asked(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl, which the README asks the server with")
    (tmp_path / "photo.jpg").symlink_to(Path(skimage.data_dir) / "rocket.jpg")
    (block,) = blocks("bash")
    serve, *requests = block.splitlines()
    command = [sys.executable, "-m", *shlex.split(serve), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = re.search(r"http://[\d.:]+", server.stdout.readline())[0]
            answers = [
                subprocess.run(
                    shlex.split(request.replace("http://127.0.0.1:8000", address)),
                    cwd=tmp_path,
                    capture_output=True,
                    check=True,
                ).stdout
                for request in requests
            ]
        finally:
            server.terminate()
    beam, sampled = (json.loads(answer)["captions"][0] for answer in answers[:2])
    assert len(beam["others"]) == 2
    assert beam["words"][0]["map"]
    assert "map" not in sampled["words"][0]
    assert "<html" in (tmp_path / "photo.html").read_text()


def test_every_setting_that_is_named_exists() -> None:
    from jsonargparse import ArgumentParser

    from captioning.training.module import CaptioningModule

    parser = ArgumentParser()
    parser.add_class_arguments(CaptioningModule, "model")
    known = {action.dest for action in parser._actions}
    named = set(re.findall(r"`(?:--)?(model\.\w+)", (REPOSITORY / "README.md").read_text()))
    assert named
    assert named <= known


def test_every_encoder_is_named() -> None:
    (row,) = re.findall(r"^\| `model\.encoder` .*", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == set(BACKBONES)


def test_the_callback_that_is_named_can_be_made() -> None:
    (entry,) = re.findall(r"`(\{class_path: .*?\}\})`", (REPOSITORY / "README.md").read_text())
    settings = yaml.safe_load(entry)
    module, _, name = settings["class_path"].rpartition(".")
    callback = getattr(importlib.import_module(module), name)(**settings["init_args"])
    assert (callback.epoch, callback.rate) == (10, 0.1)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_config_names_its_own_folder(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["trainer"]["logger"]["init_args"]["name"] == path.stem
