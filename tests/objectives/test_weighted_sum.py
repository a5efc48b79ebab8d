"""Weighted sums of objectives."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captioning.objectives import Objective, WeightedSum
from captioning.objectives.base import LossOutput, StepContext
from captioning.utils.errors import CaptioningError


class Scaled(Objective):
    """scale · Σ features, with a metric that has the same name for all instances."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))
        self.calls: list[str] = []

    def setup(self, model: Any) -> None:
        self.calls.append("setup")

    def on_train_start(self, data: Any) -> None:
        self.calls.append("on_train_start")

    def forward(self, model: Any, features: Tensor, batch: Any, step: StepContext) -> LossOutput:
        loss = self.scale * features.sum()
        return LossOutput(loss, {"value": loss.detach()})


def test_loss_gradient_and_metrics() -> None:
    parts = [Scaled(2.0), Scaled(3.0)]
    objective = WeightedSum(list(parts), [1.0, 0.5])
    features = torch.ones(2, 2)
    loss, metrics = objective(SimpleNamespace(), features, None, StepContext(torch.device("cpu")))
    assert loss.item() == 2 * 4 + 0.5 * 3 * 4
    assert metrics == {"value": 8, "value_1": 12}
    loss.backward()
    assert [part.scale.grad for part in parts] == [4, 2]


def test_each_part_is_set_up_and_saved() -> None:
    parts = [Scaled(2.0), Scaled(3.0)]
    objective = WeightedSum(list(parts), [1.0, 0.5])
    objective.setup(SimpleNamespace())
    objective.on_train_start(SimpleNamespace())
    assert [part.calls for part in parts] == [["setup", "on_train_start"]] * 2
    assert list(objective.state_dict()) == ["objectives.0.scale", "objectives.1.scale"]


def test_settings_are_checked() -> None:
    with pytest.raises(CaptioningError, match="2 objectives but 1 weights"):
        WeightedSum([Scaled(1.0), Scaled(1.0)], [1.0])
    with pytest.raises(CaptioningError, match="objectives is empty"):
        WeightedSum([], [])
    with pytest.raises(CaptioningError, match=r"WeightedSum\.weights must be >= 0, got -1"):
        WeightedSum([Scaled(1.0)], [-1.0])
