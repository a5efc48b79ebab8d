"""Small CNN for the synthetic shapes dataset. It trains from scratch within minutes."""

from collections import OrderedDict

import torch
from torch import Tensor, nn


class TinyCNN(nn.Sequential):
    """CNN of stride 8 with coordinate channels: images (B, 3, S, S) -> feature map (B, width, S/8, S/8).

    The receptive field is small (23 pixels of a 64-pixel image), so that each location describes only nearby objects.
    """

    def __init__(self, width: int = 128) -> None:
        stem = nn.Sequential(
            *self._layer(3, 32, stride=2),
            *self._layer(32, 64, stride=2),
            *self._layer(64, 64),
            *self._layer(64, 96, stride=2),
        )
        # The last layer is BatchNorm without ReLU. Features must differ between locations from the first step on;
        # otherwise attention stays uniform.
        head = nn.Sequential(*self._layer(96 + 2, width, kernel_size=1), *self._layer(width, width, kernel_size=1)[:-1])
        super().__init__(OrderedDict(stem=stem, coords=AddCoords(), head=head))

    @staticmethod
    def _layer(in_channels: int, out_channels: int, stride: int = 1, kernel_size: int = 3) -> tuple[nn.Module, ...]:
        conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding=kernel_size // 2, bias=False)
        return conv, nn.BatchNorm2d(out_channels), nn.ReLU()


class AddCoords(nn.Module):
    """Concatenates row and column coordinates (Liu et al. 2018, CoordConv): (B, D, H, W) -> (B, D + 2, H, W).

    Relations such as "left of" cannot be inferred from the pixels around one location.
    """

    def forward(self, feature_map: Tensor) -> Tensor:
        # The range exceeds that of the normalized channels, which would otherwise dominate the coordinates.
        rows, columns = (
            torch.linspace(-3, 3, side, device=feature_map.device, dtype=feature_map.dtype)
            for side in feature_map.shape[2:]
        )
        y, x = torch.meshgrid(rows, columns, indexing="ij")  # (H, W)
        coords = torch.stack((y, x)).expand(feature_map.shape[0], -1, -1, -1)  # (B, 2, H, W)
        return torch.cat((feature_map, coords), dim=1)
