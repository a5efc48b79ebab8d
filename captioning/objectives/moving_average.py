"""Moving average of a scalar, part of the state of an objective."""

import torch
from torch import Tensor, nn


class MovingAverage(nn.Module):
    """Exponential moving average with bias correction (Kingma and Ba 2015, section 3), saved in checkpoints.

    The first update replaces the initial value 0, so that the average is usable from the second training step on.

    Args:
        decay: factor of the old value, at least 0 and below 1.
    """

    value: Tensor
    num_updates: Tensor

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("value", torch.zeros(()))
        self.register_buffer("num_updates", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def update(self, values: Tensor, mask: Tensor) -> None:
        """Update with the mean of ``values[mask]``. Does nothing if no element of the mask is true."""
        count = mask.sum()
        if count == 0:
            return
        self.num_updates += 1
        mean = (values * mask).sum() / count
        rate = (1 - self.decay) / (1 - self.decay ** int(self.num_updates))  # 1 in the first update
        self.value += rate * (mean - self.value)
