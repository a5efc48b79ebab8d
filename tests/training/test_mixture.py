"""Training and evaluation on several datasets."""

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from captioning.cli.main import main
from captioning.datasets import load_records
from captioning.datasets.content_hash import hash_content
from captioning.datasets.mixture import DatasetConfig
from captioning.datasets.synthetic import shapes
from captioning.training.datamodule import CaptionDataModule
from captioning.utils.errors import CaptioningError
from tests.training.conftest import Fit


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a second dataset."""
    root = tmp_path_factory.mktemp("other") / "scenes"
    shapes.generate_dataset(root, num_images=20, seed=4)
    return root


@pytest.fixture
def mixture(config: Path, drawn: Path, other: Path) -> Path:
    """The config of a short run on two datasets."""
    settings = yaml.safe_load(config.read_text())
    settings["data"].update(root=[str(drawn), {"root": str(other), "name": "second", "weight": 2.0}], num_scenes=0)
    config.write_text(yaml.safe_dump(settings))
    return config


def last_metrics(run: Path) -> dict[str, float]:
    with (run / "metrics.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    return next(row for row in reversed(rows) if "val/nll" in row)


def test_validation_logs_each_data_set_and_the_mean(mixture: Path, fit: Fit) -> None:
    metrics = last_metrics(fit("--data.captions_per_image", "2"))
    for name in ("cider_d", "nll", "bleu4", "caption_accuracy"):
        values = [metrics[f"val/{dataset}/{name}"] for dataset in ("shapes", "second")]
        assert metrics[f"val/{name}"] == pytest.approx(sum(values) / 2, abs=1e-5)


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_evaluation_of_two_data_sets(
    mixture: Path, fit: Fit, drawn: Path, other: Path, tmp_path: Path, capsys: Any, command: str
) -> None:
    run = fit("--trainer.max_epochs", "1")
    capsys.readouterr()
    arguments = ["--config", str(run / "config.yaml"), "--ckpt_path", str(run / "checkpoints" / "last.ckpt")]
    main([command, *arguments])
    if command == "predict":
        rows = [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]
        tested = [r.image_path.name for root in (drawn, other) for r in load_records(root) if r.split == "test"]
        assert Counter(Path(row["image"]).name for row in rows) == Counter(tested)
    else:
        stage = "val" if command == "validate" else command
        output = capsys.readouterr().out
        assert re.search(r"^ +second +shapes +mean$", output, re.MULTILINE)
        assert re.search(rf"^{stage}/cider_d( +[\d.]+){{3}}$", output, re.MULTILINE)


def test_mixtures_and_single_data_sets_share_cache_entries(
    mixture: Path, drawn: Path, other: Path, tmp_path: Path
) -> None:
    encoder = ["--model.encoder.frozen", "true", "--data.feature_cache_dir", str(tmp_path / "features")]
    for root in (str(drawn), json.dumps([str(drawn), str(other)])):
        main(["cache-features", "--config", str(mixture), *encoder, "--data.root", root])
    (keys,) = (tmp_path / "features").glob("*/keys.txt")
    lines = keys.read_text().splitlines()
    assert len(lines) == len(set(lines)) == 80


def test_a_data_set_without_augmentation_has_no_further_views(mixture: Path, other: Path, tmp_path: Path) -> None:
    arguments = ["--model.encoder.frozen", "true", "--data.feature_cache_dir", str(tmp_path), "--data.num_crops", "2"]
    settings = yaml.safe_load(mixture.read_text())
    settings["data"]["root"][1]["augment"] = False
    mixture.write_text(yaml.safe_dump(settings))
    main(["cache-features", "--config", str(mixture), *arguments])
    (keys,) = tmp_path.glob("*/keys.txt")
    names: dict[str, list[str]] = {}
    for line in keys.read_text().splitlines():
        content_hash, name = line.split()
        names.setdefault(content_hash, []).append(name)
    plain = {hash_content(record.image_path) for record in load_records(other)}
    assert all(names[content_hash] == ["0"] for content_hash in plain)
    assert ["0", "crop0", "crop1"] in names.values()


@pytest.mark.parametrize("stopped_at", ["epoch=0", "epoch=1"])
def test_a_resumed_run_equals_an_uninterrupted_one(mixture: Path, fit: Fit, stopped_at: str) -> None:
    """Weights below 1 and sampled captions draw the same images and captions after the run is resumed."""
    settings = yaml.safe_load(mixture.read_text())
    settings["data"]["root"][0] = {"root": settings["data"]["root"][0], "weight": 0.5}
    settings["data"]["captions_per_image"] = 1
    every = {"save_top_k": -1, "every_n_train_steps": 3, "filename": "{epoch}-{step}-"}
    callback = {"class_path": "pytorch_lightning.callbacks.ModelCheckpoint", "init_args": every}
    settings["trainer"]["callbacks"].append(callback)
    mixture.write_text(yaml.safe_dump(settings))
    whole = fit(version="whole")
    stopped = sorted((whole / "checkpoints").glob(f"{stopped_at}-*.ckpt"))[0]
    resumed = fit("--ckpt_path", str(stopped), version="resumed")
    states = [
        torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"] for run in (whole, resumed)
    ]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_a_data_set_without_validation_split_is_trained_on_only(
    mixture: Path, fit: Fit, other: Path, tmp_path: Path
) -> None:
    karpathy = json.loads((other / "dataset.json").read_text())
    for image in karpathy["images"]:
        image["split"] = "train"
    train_only = tmp_path / "train-only"
    train_only.mkdir()
    (train_only / "images").symlink_to(other / "images")
    (train_only / "dataset.json").write_text(json.dumps(karpathy))
    settings = yaml.safe_load(mixture.read_text())
    settings["data"]["root"][1] = str(train_only)
    mixture.write_text(yaml.safe_dump(settings))
    metrics = last_metrics(fit("--trainer.max_epochs", "1"))
    assert "val/cider_d" in metrics
    assert not [name for name in metrics if name.count("/") > 1]


def test_an_unknown_setting_of_a_data_set(mixture: Path, drawn: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = yaml.safe_load(mixture.read_text())
    settings["data"]["root"] = [{"root": str(drawn), "wieght": 2.0}]
    mixture.write_text(yaml.safe_dump(settings))
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "--config", str(mixture)])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("data.root has no setting 'wieght'; choose from root, name, weight, held_out_boxes, augment")


def test_wrong_roots(drawn: Path) -> None:
    with pytest.raises(CaptioningError, match=r"data\.root is an empty list"):
        CaptionDataModule([])
    with pytest.raises(CaptioningError, match=r"num_scenes requires a single data\.root"):
        CaptionDataModule([DatasetConfig(drawn), Path("other")], num_scenes=10)
