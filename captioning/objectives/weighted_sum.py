"""Weighted sum of objectives."""

from torch import Tensor, nn

from captioning.datasets.batch import Batch
from captioning.objectives.base import CaptionModel, LossOutput, Objective, StepContext, TrainData, check_minimum
from captioning.utils.errors import CaptioningError


class WeightedSum(Objective):
    """Σ_i w_i · loss_i, for example SelfCritical + 0.4 CrossEntropy.

    Each objective runs its own forward pass on the same features. Metrics keep their names; a name that an earlier
    objective uses receives the index of its objective as a suffix.

    Args:
        objectives: the objectives.
        weights: one weight per objective.
    """

    def __init__(self, objectives: list[Objective], weights: list[float]) -> None:
        super().__init__()
        if not objectives:
            raise CaptioningError("WeightedSum.objectives is empty: give at least one objective")
        if len(objectives) != len(weights):
            raise CaptioningError(f"WeightedSum has {len(objectives)} objectives but {len(weights)} weights")
        for weight in weights:
            check_minimum("WeightedSum.weights", weight, 0)
        self.objectives = nn.ModuleList(objectives)
        self.weights = weights

    def setup(self, model: CaptionModel) -> None:
        for objective in self.objectives:
            assert isinstance(objective, Objective)
            objective.setup(model)

    def on_train_start(self, data: TrainData) -> None:
        for objective in self.objectives:
            assert isinstance(objective, Objective)
            objective.on_train_start(data)

    def forward(self, model: CaptionModel, features: Tensor, batch: Batch, step: StepContext) -> LossOutput:
        total = features.new_zeros(())
        metrics: dict[str, Tensor] = {}
        for index, (objective, weight) in enumerate(zip(self.objectives, self.weights, strict=True)):
            loss, own_metrics = objective(model, features, batch, step)
            total = total + weight * loss
            metrics |= {f"{name}_{index}" if name in metrics else name: value for name, value in own_metrics.items()}
        return LossOutput(total, metrics)
