"""The field of a place is what its annotation depends on, no more and not much less."""

import pytest
import torch
from torch import nn

from captioning.encoders import Encoder
from captioning.receptive_field import receptive_field


def test_it_is_what_a_convolution_reaches() -> None:
    encoder = Encoder("tiny").eval()
    encoder.network = nn.Conv2d(3, 8, kernel_size=24, stride=8, padding=8)  # a cell's own 8 pixels, and 8 on each side
    nn.init.constant_(encoder.network.weight, 1.0)
    across, down = receptive_field(encoder)
    assert across == down
    assert 22 / 64 <= across <= 24 / 64, "95 % of 24 × 24 pixels that count alike are 23.4 × 23.4"


@pytest.mark.parametrize("name", ["tiny", "resnet18"])
def test_what_lies_beyond_it_hardly_counts(name: str) -> None:
    torch.manual_seed(0)
    encoder = Encoder(name).eval()
    across, _ = receptive_field(encoder)
    assert 1 / encoder.grid[1] < across < 0.9
    assert receptive_field(encoder.for_inference())[0] == pytest.approx(across, abs=0.02)
    assert all(parameter.grad is None for parameter in encoder.parameters())
    with torch.inference_mode():
        assert receptive_field(encoder)[0] == across
        size, (rows, columns) = encoder.transform.size, encoder.grid
        place = rows // 2 * columns + columns // 2
        middle, half = round((columns // 2 + 0.5) * size / columns), round(across * size / 2)
        near = slice(max(middle - half, 0), middle + half)
        pixels = torch.randn(1, 3, size, size)
        before = encoder(pixels)[0, place]
        outside, inside = torch.randn(1, 3, size, size), pixels.clone()
        outside[..., near, near] = pixels[..., near, near]
        inside[..., near, near] = torch.randn(1, 3, size, size)[..., near, near]
        beyond, within = ((encoder(changed)[0, place] - before).norm() for changed in (outside, inside))
    assert beyond < within / 2
