"""A new objective and a new penalty in one file outside of the package, as CONTRIBUTING.md describes."""

import csv
from pathlib import Path

import pytest
import torch
import yaml

from captioning.cli.main import main
from tests.training.conftest import Fit
from tests.training.test_cli import check_error

SOURCE = '''
"""Focal loss (Lin et al. 2017) of the reference captions."""

import torch
from torch import Tensor, nn

from captioning.datasets.batch import Batch
from captioning.models.decoder import DecoderOutput
from captioning.objectives import Objective, OutputTerm
from captioning.objectives.base import (
    CaptionModel, LossOutput, StepContext, add_terms, check_minimum, setup_terms
)


class MaxLogit(OutputTerm):
    """Mean of the largest logits."""

    name = "max_logit"

    def forward(self, output: DecoderOutput, features: Tensor, batch: Batch) -> Tensor:
        return output.logits.max(dim=-1).values.mean()


class FocalLoss(Objective):
    """Σ_t −(1 − p_t)^γ log p_t.

    Args:
        gamma: weight of improbable tokens; 0 is cross-entropy.
        terms: penalties that are added to the loss.
    """

    def __init__(self, gamma: float = 2.0, terms: list[OutputTerm] = []) -> None:
        super().__init__()
        check_minimum("FocalLoss.gamma", gamma, 0)
        self.gamma = gamma
        self.terms = nn.ModuleList(terms)
        self.register_buffer("num_batches", torch.zeros((), dtype=torch.long))

    def setup(self, model: CaptionModel) -> None:
        setup_terms(self.terms, model)

    def forward(self, model: CaptionModel, features: Tensor, batch: Batch, step: StepContext) -> LossOutput:
        self.num_batches += 1
        output = model.decoder(features, batch.token_ids, batch.lengths)
        log_probs = output.logits.log_softmax(-1).gather(1, output.targets[:, None])  # (N, 1)
        focal = -((1 - log_probs.exp()) ** self.gamma * log_probs).sum() / batch.num_captions
        loss, metrics = add_terms(focal, self.terms, output, features, batch)
        return LossOutput(loss, {"focal": focal.detach(), **metrics})
'''


@pytest.fixture
def focal_config(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "focal_loss.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    settings = yaml.safe_load(config.read_text())
    terms = [{"class_path": "focal_loss.MaxLogit", "init_args": {"weight": 0.01}}]
    settings["model"]["objective"] = {"class_path": "focal_loss.FocalLoss", "init_args": {"gamma": 1.5, "terms": terms}}
    settings["trainer"].update(max_epochs=1, limit_train_batches=3, log_every_n_steps=1)
    config.write_text(yaml.safe_dump(settings))
    return config


def test_a_new_objective_trains_logs_and_is_saved(focal_config: Path, fit: Fit) -> None:
    run = fit()
    with (run / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("train/focal")]
    assert len(rows) == 3
    for row in rows:
        loss, focal, max_logit = (float(row[f"train/{name}"]) for name in ("loss", "focal", "max_logit"))
        assert loss == pytest.approx(focal + 0.01 * max_logit, rel=1e-4)
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert checkpoint["state_dict"]["objective.num_batches"] == 3


def test_its_settings_are_validated_and_shown(focal_config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fit", "--config", str(focal_config)]
    check_error(capsys, [*arguments, "--model.objective.init_args.gamma", "-1"], "FocalLoss.gamma must be >= 0, got -1")
    check_error(
        capsys,
        [*arguments, "--model.objective.init_args.gama", "1"],
        "no setting 'gama'",
        "FocalLoss has the settings gamma, terms",
    )
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--model.objective.help", "focal_loss.FocalLoss"])
    assert stop.value.code == 0
    assert "weight of improbable tokens" in capsys.readouterr().out
