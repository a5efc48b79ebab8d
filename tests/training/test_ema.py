"""Exponential moving average of the weights."""

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import yaml
from torch import Tensor
from torch.utils.data import DataLoader

from captioning.cli.main import main
from captioning.training.callbacks import EMAWeights
from captioning.utils.errors import CaptioningError
from tests.training.conftest import Fit
from tests.training.test_cli import states


class Climber(pl.LightningModule):
    """Its weight increases by one at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch: Any) -> Tensor:
        return -self.weight

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def test_plain_mean_first_then_exponential_decay() -> None:
    climber = Climber()
    trainer = pl.Trainer(
        max_steps=40,
        callbacks=[EMAWeights(decay=0.9, update_every_n_steps=2)],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(climber, DataLoader(range(40)))
    mean = 0.0
    for updates, weight in enumerate(range(2, 41, 2)):
        mean += (weight - mean) * max(1 - 0.9**2, 1 / (updates + 1))
    assert climber.weight.item() == pytest.approx(mean)


def test_invalid_settings() -> None:
    for settings in ({"decay": 1.0}, {"decay": -0.1}, {"update_every_n_steps": 0}):
        with pytest.raises(CaptioningError, match=r"EMAWeights.* must be"):
            EMAWeights(**settings)


@pytest.fixture
def averaged(config: Path) -> Path:
    settings = yaml.safe_load(config.read_text())
    callback = {
        "class_path": "captioning.training.callbacks.EMAWeights",
        "init_args": {"decay": 0.8, "update_every_n_steps": 2},
    }
    every = {"every_n_train_steps": 3, "save_top_k": -1, "filename": "{epoch}-{step}-"}
    keep = {"class_path": "pytorch_lightning.callbacks.ModelCheckpoint", "init_args": every}
    settings["trainer"]["callbacks"] += [callback, keep]
    settings["model"]["encoder"]["frozen"] = True
    config.write_text(yaml.safe_dump(settings))
    return config


def test_a_frozen_encoder_keeps_its_fingerprint(fit: Fit, averaged: Path, tmp_path: Path) -> None:
    run = fit()
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    mean, current = checkpoint["state_dict"], checkpoint["current_model_state"]
    moved = {name.split(".")[0] for name, weight in mean.items() if not torch.equal(weight, current[name])}
    assert moved == {"decoder"}
    arguments = ("--ckpt_path", str(run / "checkpoints" / "last.ckpt"), "--trainer.logger.init_args.version", "after")
    main(["validate", "--config", str(averaged), *arguments])
    assert len([path for path in (tmp_path / "features").iterdir() if path.is_dir()]) == 1


def test_a_resumed_run_continues_the_average(fit: Fit, averaged: Path) -> None:
    whole = fit(version="whole")
    (stopped,) = (whole / "checkpoints").glob("*step=9-*.ckpt")
    resumed = fit("--ckpt_path", str(stopped), version="resumed")
    weights, weights_after = states(whole)[0], states(resumed)[0]
    for key, weight in weights.items():
        assert torch.equal(weight, weights_after[key]), key
