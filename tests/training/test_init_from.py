"""Fine-tuning with configs/finetune.yaml on a few images of one's own."""

import csv
import shutil
from pathlib import Path

import pytest
import torch

from captioning.cli.main import main
from captioning.models.checkpoint import read_model
from tests.conftest import REPOSITORY, make_captioner
from tests.training.test_cli import check_error

CONFIG = str(REPOSITORY / "configs" / "finetune.yaml")


@pytest.fixture
def my_images(drawn: Path, tmp_path: Path) -> Path:
    """20 images with captions that contain a new word."""
    root = tmp_path / "my-images"
    root.mkdir()
    rows = [("image", "caption")]
    for image in sorted((drawn / "images").iterdir())[:20]:
        shutil.copy(image, root)
        rows += [(image.name, "a red circle and a zeppelin"), (image.name, "the zeppelin is large")]
    with (root / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return root


@pytest.fixture
def fit_arguments(my_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    make_captioner().save(tmp_path / "initial.safetensors")
    monkeypatch.chdir(tmp_path)
    options = ["--data.root", str(my_images), "--model.init_from", "initial.safetensors"]
    options += ["--model.encoder.frozen", "true"]
    return ["fit", "--config", CONFIG, *options, "--trainer.enable_progress_bar", "false"]


def test_twenty_images_are_enough(
    fit_arguments: list[str], my_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(fit_arguments)
    tuned = tmp_path / "runs" / "finetune" / "version_0" / "checkpoints" / "last.safetensors"
    before, after = read_model(tmp_path / "initial.safetensors"), read_model(tuned)
    known = before.header["vocabulary"]
    assert after.header["vocabulary"] == [*known, "zeppelin"], "the ids of known words stay"
    for name, tensor in before.tensors.items():
        if name.startswith("encoder."):
            assert torch.equal(tensor, after.tensors[name]), name
    assert not torch.equal(before.tensors["decoder.output.bias"], after.tensors["decoder.output.bias"][: len(known)])
    capsys.readouterr()
    main(["caption", str(my_images), "--model", str(tuned)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20
    assert all(line.partition("\t")[2] for line in lines)


def test_images_without_captions_are_refused(
    fit_arguments: list[str], my_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (my_images / "captions.csv").write_text("image,caption\n000000.png,\n")
    check_error(capsys, fit_arguments, "captions.csv", "no usable image")
    (my_images / "captions.csv").unlink()
    check_error(capsys, fit_arguments, "my-images", "no captions found", "captions.csv", "data/README.md")
    assert not (tmp_path / "runs").exists()
