"""The recipes for photos run as they stand, on a few drawn pictures for one batch; only their networks are narrower."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from captioning.captioner import Captioner
from captioning.cli.main import main
from tests.conftest import REPOSITORY

NARROW = ["--model.embedding_size", "32", "--model.hidden_size", "32", "--trainer.enable_progress_bar", "false"]
# torchvision's weights are a download
WITHOUT_DOWNLOAD = {"vgg19": ["--model.weights", "random", "--model.image_size", "32"]}


@pytest.mark.parametrize(
    "name",
    [
        "flickr8k-soft",
        "flickr8k-soft-scst",
        "flickr8k-hard",
        "flickr8k-hard-scst",
        "xu2015-vgg19-flickr30k",
        "xu2015-vgg19-coco",
    ],
    ids=lambda name: name,
)
def test_a_recipe_for_photos_runs(name: str, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are found below CAPTIONING_DATA_DIR, each goes through the CNN, and a model is left that captions."""
    text = (REPOSITORY / "configs" / f"{name}.yaml").read_text()
    (root,) = (line.split()[1] for line in text.splitlines() if line.startswith("  root:"))
    sets = tmp_path / "sets"
    sets.mkdir()
    (sets / root).symlink_to(drawn)
    monkeypatch.setenv("CAPTIONING_DATA_DIR", str(sets))
    monkeypatch.chdir(tmp_path)
    options = WITHOUT_DOWNLOAD["vgg19"] if "vgg19" in name else []
    batches = [
        "--trainer.max_epochs",
        "1",
        "--trainer.limit_train_batches",
        "1",
        "--trainer.check_val_every_n_epoch",
        "1",
    ]
    main(["fit", "--config", str(REPOSITORY / "configs" / f"{name}.yaml"), *NARROW, *options, *batches])
    settings = yaml.safe_load(text)
    copies = [1 + settings["data"].get("mirror", False)]
    if crops := settings["data"].get("crops"):
        copies.append(crops)
    caches = (tmp_path / "data" / "features").glob("*/annotations.npy")
    assert sorted(len(np.load(cache, mmap_mode="r")) for cache in caches) == copies
    model = tmp_path / "runs" / name / "version_0" / "checkpoints" / "best.safetensors"
    captioner = Captioner.load(model)
    assert captioner.search.beam == settings["model"]["search"]["beam"]
    assert captioner(next((drawn / "images").iterdir())).words
