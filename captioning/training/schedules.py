"""Learning-rate schedules that torch does not have."""

import math
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, MultiplicativeLR


class WarmupCosine(LambdaLR):
    """Up in a straight line, then down along half a cosine, over the whole run whatever its length.

    Args:
        optimizer: whose learning rate is the peak.
        warmup: share of the run that goes up.
        floor: share of the peak where it ends.
    """

    def __init__(self, optimizer: Optimizer, warmup: float = 0.05, floor: float = 0.0) -> None:
        self.warmup = warmup
        self.floor = floor
        self.total_steps = 1
        super().__init__(optimizer, self._factor)

    def plan(self, total_steps: int) -> None:
        """Take in the length of the run, which is known only when it begins."""
        self.total_steps = total_steps
        for group, peak in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = peak * self._factor(self.last_epoch)

    def state_dict(self) -> dict[str, Any]:
        # A run that is resumed to last longer has a plan of its own.
        return {name: value for name, value in super().state_dict().items() if name != "total_steps"}

    def _factor(self, step: int) -> float:
        done = (step + 1) / max(self.total_steps, 1)
        if done < self.warmup:
            return done / self.warmup
        falling = min((done - self.warmup) / (1 - self.warmup), 1.0)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * falling)) / 2


def take_in_groups(schedule: LRScheduler) -> None:
    """Let a schedule know the groups that its optimiser was given after the schedule was made.

    torch keeps lists with an entry for each group there was, and stops where they are too short.
    """
    groups = schedule.optimizer.param_groups
    if hasattr(schedule, "base_lrs"):  # ReduceLROnPlateau has none, and needs none
        schedule.base_lrs = [group["initial_lr"] for group in groups]
    if isinstance(schedule, LambdaLR | MultiplicativeLR):
        schedule.lr_lambdas += schedule.lr_lambdas[:1] * (len(groups) - len(schedule.lr_lambdas))
