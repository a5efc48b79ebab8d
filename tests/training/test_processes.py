"""Two processes on the CPU, as on two GPUs."""

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
    """Each process leaves its encoder behind, as it was when training began and when it ended."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        torch.save(pl_module.encoder.state_dict(), f"before-{trainer.global_rank}.pth")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        torch.save(pl_module.encoder.state_dict(), f"after-{trainer.global_rank}.pth")


@pytest.mark.parametrize(
    "model",
    [[], ["--model.attention", "hard", "--model.estimator", "learned", "--model.soft_start", "0.5"]],
    ids=["soft", "hard"],
)
def test_two_processes_train_together(config: Path, tmp_path: Path, model: list[str]) -> None:
    fit_in_two(config, tmp_path, *model)
    with (tmp_path / "runs" / "test" / "run" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len([row for row in rows if row["val/truth"]]) == 2
    assert int(rows[-1]["step"]) == 5, "two epochs of six batches, shared by two"


def test_an_encoder_unfrozen_later_stays_the_same_in_both(config: Path, tmp_path: Path) -> None:
    """DDP does not average the gradients of what was frozen when it was set up."""
    settings = yaml.safe_load(config.read_text())
    settings["model"]["train_encoder"] = False
    settings["trainer"]["callbacks"] += [
        {"class_path": "captioning.training.callbacks.FineTuneEncoder", "init_args": {"epoch": 1}},
        {"class_path": "tests.training.test_processes.KeepEncoder"},
    ]
    config.write_text(yaml.safe_dump(settings))
    fit_in_two(config, tmp_path)
    before, after, other = (torch.load(tmp_path / f"{name}.pth") for name in ("before-0", "after-0", "after-1"))
    assert not torch.equal(before["network.places.3.weight"], after["network.places.3.weight"])
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
