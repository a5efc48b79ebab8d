"""The README's commands, run one after the other as a newcomer would; only the training is made short."""

import importlib
import re
import shlex
from pathlib import Path

import pytest
import yaml

from captioning.cli import main
from captioning.encoders import ENCODERS
from tests.conftest import REPOSITORY

# What makes a command short: few scenes, two epochs. Everything else is as it stands in the README.
SHORT = {
    "fit": ["--data.scenes", "60", "--trainer.max_epochs", "2", "--trainer.enable_progress_bar", "false"],
    "test": ["--data.scenes", "60", "--trainer.enable_progress_bar", "false"],
    "predict": ["--data.scenes", "60", "--trainer.enable_progress_bar", "false"],
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)


def test_commands_and_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]
    subcommands = [command[1] for command in commands]
    assert subcommands == ["shapes", "data", "fit", "test", "caption", "caption", "fit", "test", "caption", "predict"]
    for program, subcommand, *arguments in commands:
        assert program == "captioning"
        main([subcommand, *arguments, *SHORT.get(subcommand, [])])
    output = capsys.readouterr().out
    assert "test/pointing" in output
    assert (tmp_path / "captions.jsonl").read_text().count("\n") > 0
    assert len(list((tmp_path / "overlays").glob("*.png"))) == 300

    (script,) = blocks("python")
    exec(compile(script, "README.md", "exec"), {})  # the newcomer's own session
    assert (tmp_path / "overlay.png").is_file()
    words, rows, columns = re.search(r"\((\d+), (\d+), (\d+)\)", capsys.readouterr().out).groups()
    assert (int(rows), int(columns)) == (8, 8)
    assert int(words) > 0


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
    assert set(re.findall(r"`(\w+)`", row)) == set(ENCODERS)


def test_the_callback_that_is_named_can_be_made() -> None:
    (entry,) = re.findall(r"`(\{class_path: .*?\}\})`", (REPOSITORY / "README.md").read_text())
    settings = yaml.safe_load(entry)
    module, _, name = settings["class_path"].rpartition(".")
    callback = getattr(importlib.import_module(module), name)(**settings["init_args"])
    assert (callback.epoch, callback.rate) == (10, 0.1)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_config_names_its_own_folder(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["trainer"]["logger"]["init_args"]["name"] == path.stem
