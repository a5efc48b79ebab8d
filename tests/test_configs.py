"""The recipes for photos run as they stand, on a few drawn pictures for one batch; only their networks are narrower."""

from pathlib import Path

import pytest
import torch
import yaml

from captioning.captioner import Captioner
from captioning.cli import main
from captioning.encoders import Encoder
from tests.conftest import REPOSITORY

NARROW = ["--model.embedding_size", "32", "--model.hidden_size", "32", "--trainer.enable_progress_bar", "false"]
# torchvision's weights are a download
WITHOUT_DOWNLOAD = {"vgg19": ["--model.weights", "random", "--model.image_size", "32"]}


@pytest.mark.parametrize(
    "name",
    [
        "flickr8k-soft",
        "flickr8k-soft-cider",
        "flickr8k-hard",
        "flickr8k-hard-cider",
        "paper-vgg19-flickr30k",
        "paper-vgg19-coco",
    ],
    ids=lambda name: name,
)
def test_a_recipe_for_photos_runs(name: str, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are found below CAPTIONING_DATA, each goes through the CNN, and a model is left that captions."""
    options = WITHOUT_DOWNLOAD["vgg19"] if "vgg19" in name else []
    best = fit_one_batch(name, drawn, tmp_path, monkeypatch, *options)
    assert len(list((tmp_path / "data" / "features").glob("*/annotations.npy"))) == 1
    captioner = Captioner.load(best.with_suffix(".safetensors"))
    config = yaml.safe_load((REPOSITORY / "configs" / f"{name}.yaml").read_text())
    assert captioner.search.beam == config["model"]["search"]["beam"]
    assert captioner(next((drawn / "images").iterdir())).words


def test_the_recipe_for_the_encoder_leaves_what_the_next_begins_with(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = fit_one_batch("flickr8k-words", drawn, tmp_path, monkeypatch)
    soft = fit_one_batch("flickr8k-soft", drawn, tmp_path, monkeypatch, "--model.begin_with", str(words))
    hard = fit_one_batch("flickr8k-hard", drawn, tmp_path, monkeypatch, "--model.begin_with", str(soft))
    states = [torch.load(path, weights_only=True)["state_dict"] for path in (words, soft, hard)]
    pretrained = Encoder("efficientnet_lite1_lite2", "pretrained").state_dict()
    moved = {name for name, tensor in pretrained.items() if not torch.equal(states[0][f"encoder.{name}"], tensor)}
    assert {name.rpartition(".blocks.")[2].partition(".")[0] for name in moved if ".blocks." in name} == {"5", "6"}
    for name in pretrained:
        assert all(torch.equal(state[f"encoder.{name}"], states[0][f"encoder.{name}"]) for state in states[1:]), name


def fit_one_batch(name: str, drawn: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Path:
    """Train by a recipe, in a folder; the best checkpoint."""
    config = REPOSITORY / "configs" / f"{name}.yaml"
    root = folder / "sets" / yaml.safe_load(config.read_text())["data"]["root"]
    if not root.exists():
        root.parent.mkdir()
        root.symlink_to(drawn)
    monkeypatch.setenv("CAPTIONING_DATA", str(root.parent))
    monkeypatch.chdir(folder)
    few = {"max_epochs": 1, "limit_train_batches": 1, "check_val_every_n_epoch": 1}
    batches = [word for setting, value in few.items() for word in (f"--trainer.{setting}", str(value))]
    main(["fit", "--config", str(config), *NARROW, *options, *batches])
    return folder / "runs" / name / "version_0" / "checkpoints" / "best.ckpt"
