"""Runs the commands of the README one after the other, on few images and with short trainings."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import skimage

from captioning import datasets
from captioning.cli.main import main
from tests.conftest import REPOSITORY

QUIET = ["--trainer.enable_progress_bar", "false"]
# Arguments that make a command short. Everything else is as in the README.
SHORT = {
    "fit": ["--trainer.max_epochs", "2", *QUIET],
    "validate": QUIET,
    "test": QUIET,
    "predict": QUIET,
    "faithfulness": ["--num-images", "12"],
}
# A model that is trained so little generates "a a a", and articles have no maps to be tested.
LONG_CAPTIONS = ["--model.generation.no_repeat_ngram_size", "1", "--model.generation.min_length", "6"]


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)


def write_photo_stand_in(root: Path, scenes: Path) -> None:
    """A dataset of synthetic images without the descriptions of their scenes, as a stand-in for photos."""
    root.mkdir(parents=True)
    shutil.copytree(scenes / "images", root / "images")
    rows = [
        {"image": record.image_path.name, "captions": record.captions, "split": record.split}
        for record in datasets.load_records(scenes)
    ]
    (root / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))


def test_commands_and_python(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    (tmp_path / "photo.jpg").symlink_to(Path(skimage.data_dir) / "rocket.jpg")
    write_photo_stand_in(tmp_path / "my-images", drawn)
    for name in ("flickr8k", "coco", "coco_large", "pascal"):
        write_photo_stand_in(tmp_path / "data-sets" / name, drawn)
    monkeypatch.setenv("CAPTIONING_DATA_DIR", str(tmp_path / "data-sets"))
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line) for block in code_blocks("sh") for line in block.splitlines()]
    assert {command[1] for command in commands} >= {
        *("caption", "inspect-data", "make-shapes", "cache-features", "fit", "validate", "test", "predict"),
        *("average", "compress", "score", "faithfulness"),
    }
    for program, subcommand, *arguments in commands:
        assert program == "captioning"
        uses_shapes = subcommand in ("fit", "test", "validate", "predict") and "shapes" in " ".join(arguments)
        scenes = ["--data.num_scenes", "60"] if uses_shapes else []
        captions = LONG_CAPTIONS if scenes and subcommand == "fit" else []
        main([subcommand, *arguments, *scenes, *captions, *SHORT.get(subcommand, [])])
    output = capsys.readouterr().out
    assert "test/pointing_game" in output
    assert "val/meteor" in output
    assert (tmp_path / "my-model.safetensors").stat().st_size < 25e6
    assert (tmp_path / "captions.jsonl").read_text().count("\n") > 0
    maps = {path.name for path in (tmp_path / "maps").glob("[!.]*")}
    assert maps == {"photo", *(f"photo.{suffix}" for suffix in ("html", "gif", "png", "npz", "json"))}

    (script,) = code_blocks("python")
    exec(compile(script, "README.md", "exec"), {})
    assert (tmp_path / "overlay.png").is_file()
    match = re.search(r"\((\d+), (\d+), (\d+)\)", capsys.readouterr().out)
    assert match is not None
    assert min(map(int, match.groups())) > 0


def test_server_and_requests(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl, which the README uses for its requests")
    (tmp_path / "photo.jpg").symlink_to(Path(skimage.data_dir) / "rocket.jpg")
    (block,) = code_blocks("bash")
    serve, *requests = block.splitlines()
    command = [sys.executable, "-m", *shlex.split(serve), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            match = re.search(r"http://[\d.:]+", server.stdout.readline())
            assert match is not None
            answers = [
                subprocess.run(
                    shlex.split(request.replace("http://127.0.0.1:8000", match[0])),
                    cwd=tmp_path,
                    capture_output=True,
                    check=True,
                ).stdout
                for request in requests
            ]
        finally:
            server.terminate()
    beam, sampled = (json.loads(answer)["captions"][0] for answer in answers[:2])
    assert len(beam["alternatives"]) == 2
    assert beam["words"][0]["attention_map"]
    assert "attention_map" not in sampled["words"][0]
    assert "<html" in (tmp_path / "photo.html").read_text()


def test_every_setting_in_the_text_exists() -> None:
    settings = (REPOSITORY / "docs" / "settings.md").read_text()
    names = set(re.findall(r"(?:--)?((?:model|data)\.[a-z_.]+\w)", (REPOSITORY / "README.md").read_text()))
    assert names
    parts = {name.rpartition(".")[2] for name in names if "init_args" not in name}
    assert [part for part in parts if part not in settings] == []


def test_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 170


def test_every_recipe_in_the_table_exists() -> None:
    rows = re.findall(r"^\| (`[\w-]+`(?:, `[\w-]+`)*) \|", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    recipes = {path.stem for path in (REPOSITORY / "configs").glob("*.yaml")}
    assert {name for name in names if "-" in name and not name.startswith("-")} <= recipes
