"""Learning-rate schedules that torch does not provide."""

import math
from typing import Any

import pytorch_lightning as pl
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, MultiplicativeLR, ReduceLROnPlateau


class WarmupCosineLR(LambdaLR):
    """Linear warm-up followed by cosine decay over the whole run, stepped after each optimizer step.

    Args:
        optimizer: its learning rate is the peak.
        warmup_fraction: fraction of the steps that are warm-up.
        min_lr_ratio: final learning rate as a fraction of the peak.
    """

    def __init__(self, optimizer: Optimizer, warmup_fraction: float = 0.05, min_lr_ratio: float = 0.0) -> None:
        self.warmup_fraction = warmup_fraction
        self.min_lr_ratio = min_lr_ratio
        self.total_steps = 1
        super().__init__(optimizer, self._factor)

    def set_total_steps(self, total_steps: int) -> None:
        """Set the number of steps of the run, which is not known before it starts."""
        self.total_steps = total_steps
        for group, peak in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = peak * self._factor(self.last_epoch)

    def state_dict(self) -> dict[str, Any]:
        # A resumed run may have another number of steps.
        return {name: value for name, value in super().state_dict().items() if name != "total_steps"}

    def _factor(self, step: int) -> float:
        progress = (step + 1) / max(self.total_steps, 1)
        if progress < self.warmup_fraction:
            return progress / self.warmup_fraction
        decay = min((progress - self.warmup_fraction) / (1 - self.warmup_fraction), 1.0)
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * (1 + math.cos(math.pi * decay)) / 2


def lr_scheduler_config(scheduler: LRScheduler | ReduceLROnPlateau) -> dict[str, Any]:
    """The configuration that Lightning expects. WarmupCosineLR is stepped every optimizer step, others every epoch."""
    interval = "step" if isinstance(scheduler, WarmupCosineLR) else "epoch"
    return {"scheduler": scheduler, "interval": interval, "monitor": "val/nll"}


def set_total_steps(trainer: pl.Trainer) -> None:
    """Give each WarmupCosineLR of a run its number of steps.

    ``estimated_stepping_batches`` creates the data loaders, so it may be read only after a checkpoint was restored.
    """
    for config in trainer.lr_scheduler_configs:
        if isinstance(config.scheduler, WarmupCosineLR):
            config.scheduler.set_total_steps(int(trainer.estimated_stepping_batches))


def sync_param_groups(scheduler: LRScheduler) -> None:
    """Extend a scheduler to parameter groups that were added to its optimizer later.

    torch keeps one list entry per group and fails if an entry is missing.
    """
    groups = scheduler.optimizer.param_groups
    if hasattr(scheduler, "base_lrs"):  # ReduceLROnPlateau has none
        scheduler.base_lrs = [group["initial_lr"] for group in groups]
    if isinstance(scheduler, LambdaLR | MultiplicativeLR):
        scheduler.lr_lambdas += scheduler.lr_lambdas[:1] * (len(groups) - len(scheduler.lr_lambdas))
