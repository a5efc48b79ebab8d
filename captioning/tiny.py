"""A small CNN for drawn scenes, which trains from nothing in minutes."""

from collections import OrderedDict

import torch
from torch import Tensor, nn


class TinyCNN(nn.Sequential):
    """Three halvings and a small field of view (23 of 64 pixels), so that a place knows only what is drawn near it."""

    def __init__(self, width: int = 128) -> None:
        pixels = nn.Sequential(
            *self._layer(3, 32, stride=2),
            *self._layer(32, 64, stride=2),
            *self._layer(64, 64),
            *self._layer(64, 96, stride=2),
        )
        # Ends in BatchNorm without ReLU: places must differ from the first step on, or attention never leaves uniform.
        places = nn.Sequential(*self._layer(96 + 2, width, kernel=1), *self._layer(width, width, kernel=1)[:-1])
        super().__init__(OrderedDict(pixels=pixels, where=_Where(), places=places))

    @staticmethod
    def _layer(channels_in: int, channels_out: int, stride: int = 1, kernel: int = 3) -> tuple[nn.Module, ...]:
        convolution = nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False)
        return convolution, nn.BatchNorm2d(channels_out), nn.ReLU()


class _Where(nn.Module):
    """Adds two channels that tell each place where it is: "left of" cannot be seen from one place's pixels."""

    def forward(self, seen: Tensor) -> Tensor:
        # Wider than the normalised channels beside them, which would drown them.
        rows, columns = (torch.linspace(-3, 3, side, device=seen.device, dtype=seen.dtype) for side in seen.shape[2:])
        down, across = torch.meshgrid(rows, columns, indexing="ij")
        where = torch.stack((down, across)).expand(len(seen), -1, -1, -1)  # (B, 2, h, w)
        return torch.cat((seen, where), dim=1)
