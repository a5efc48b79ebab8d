import pytest
import torch
from torch import nn

from captioning.models.encoder import Encoder
from captioning.models.receptive_field import receptive_field


def test_receptive_field_of_one_convolution_is_its_kernel() -> None:
    encoder = Encoder("tiny", frozen=False).eval()
    encoder.backbone = nn.Conv2d(3, 8, kernel_size=24, stride=8, padding=8)  # 8 pixels of the cell, 8 on each side
    nn.init.constant_(encoder.backbone.weight, 1.0)
    width, height = receptive_field(encoder)
    assert width == height
    assert 22 / 64 <= width <= 24 / 64, "95 % of 24 × 24 pixels of equal gradient are 23.4 × 23.4"


@pytest.mark.parametrize("backbone", ["tiny", "resnet18"])
def test_features_depend_mostly_on_pixels_inside(backbone: str) -> None:
    torch.manual_seed(0)
    encoder = Encoder(backbone, frozen=False).eval()
    width, _ = receptive_field(encoder)
    assert 1 / encoder.grid_size[1] < width < 0.9
    assert receptive_field(encoder.for_inference())[0] == pytest.approx(width, abs=0.02)
    assert all(parameter.grad is None for parameter in encoder.parameters())
    with torch.inference_mode():
        assert receptive_field(encoder)[0] == width
        size, (rows, columns) = encoder.transform.image_size, encoder.grid_size
        location = rows // 2 * columns + columns // 2
        center, half_side = round((columns // 2 + 0.5) * size / columns), round(width * size / 2)
        inside = slice(max(center - half_side, 0), center + half_side)
        pixels = torch.randn(1, 3, size, size)
        features = encoder(pixels)[0, location]
        changed_outside, changed_inside = torch.randn(1, 3, size, size), pixels.clone()
        changed_outside[..., inside, inside] = pixels[..., inside, inside]
        changed_inside[..., inside, inside] = torch.randn(1, 3, size, size)[..., inside, inside]
        outside_effect, inside_effect = (
            (encoder(changed)[0, location] - features).norm() for changed in (changed_outside, changed_inside)
        )
    assert outside_effect < inside_effect / 2
