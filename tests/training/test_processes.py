"""Distributed training with two processes on the CPU."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
import yaml

from tests.conftest import REPOSITORY


class KeepEncoder(pl.Callback):
    """Each process saves its encoder at the start and at the end of training."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        torch.save(pl_module.encoder.state_dict(), f"before-{trainer.global_rank}.pth")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        torch.save(pl_module.encoder.state_dict(), f"after-{trainer.global_rank}.pth")


@pytest.mark.parametrize(
    "model",
    [
        [],
        [
            *("--model.decoder.attention", "hard", "--model.objective", "VariationalBound"),
            *("--model.objective.estimator", "LearnedBaseline", "--model.objective.soft_warmup", "0.5"),
        ],
    ],
    ids=["soft", "hard"],
)
def test_two_processes_train_together(config: Path, tmp_path: Path, model: list[str]) -> None:
    fit_in_two(config, tmp_path, *model)
    with (tmp_path / "runs" / "test" / "run" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len([row for row in rows if row["val/caption_accuracy"]]) == 2
    assert int(rows[-1]["step"]) == 5, "two epochs of six batches, divided by two"


def test_an_encoder_that_is_unfrozen_later_stays_in_sync(config: Path, tmp_path: Path) -> None:
    """DDP does not average gradients of parameters that were frozen when it was set up."""
    settings = yaml.safe_load(config.read_text())
    settings["model"]["encoder"]["frozen"] = True
    settings["trainer"]["callbacks"] += [
        {"class_path": "captioning.training.callbacks.EncoderFinetuning", "init_args": {"unfreeze_at_epoch": 1}},
        {"class_path": "tests.training.test_processes.KeepEncoder"},
    ]
    config.write_text(yaml.safe_dump(settings))
    fit_in_two(config, tmp_path)
    before, after, other = (torch.load(tmp_path / f"{name}.pth") for name in ("before-0", "after-0", "after-1"))
    assert not torch.equal(before["backbone.head.3.weight"], after["backbone.head.3.weight"])
    for name, value in after.items():
        assert torch.equal(value, other[name]), name


def fit_in_two(config: Path, folder: Path, *arguments: str) -> None:
    where = ("--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp")
    command = [sys.executable, "-m", "captioning", "fit", "--config", str(config), *arguments, *where]
    paths = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))  # for KeepEncoder
    environment = {**os.environ, "PYTHONPATH": paths}
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, timeout=300, env=environment
    )
    assert result.returncode == 0, result.stderr
