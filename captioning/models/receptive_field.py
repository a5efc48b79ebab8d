"""Effective receptive field of an encoder location, measured by backpropagation.

The theoretical receptive field of a deep CNN covers the whole image; the effective one is much smaller (Luo et al.
2016, "Understanding the Effective Receptive Field in Deep Convolutional Neural Networks").
"""

import torch

from captioning.models.encoder import FeatureExtractor

_ENERGY_FRACTION = 0.95  # fraction of the squared gradient inside the receptive field
_NUM_NOISE_SAMPLES = 2  # more samples move the border by at most one pixel


def receptive_field(encoder: FeatureExtractor) -> tuple[float, float]:
    """Return the width and height of the receptive field of the central location, as fractions of the input size.

    The receptive field is the smallest square, centered at the location, that contains 95 % of the squared gradient of
    its features with respect to the pixels of noise images.
    """
    size, (rows, columns) = encoder.transform.image_size, encoder.grid_size
    row, column = rows // 2, columns // 2
    device = next(encoder.parameters()).device
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.enable_grad():
        pixels = torch.randn(_NUM_NOISE_SAMPLES, 3, size, size, generator=generator).to(device).requires_grad_()
        features = encoder(pixels)[:, row * columns + column]  # (N, D)
        # The expected squared gradient along a random direction equals that of the whole Jacobian up to a factor.
        direction = torch.randn(features.shape, generator=generator).to(device)
        (gradient,) = torch.autograd.grad(features, pixels, direction)  # (N, 3, S, S)
    energy = gradient.square().sum((0, 1)).flatten().cpu()  # (S²,)
    centers = torch.arange(size) + 0.5
    dy, dx = (centers - (row + 0.5) * size / rows).abs(), (centers - (column + 0.5) * size / columns).abs()
    half_side = torch.maximum(dy[:, None], dx[None]).flatten()  # (S²,), of the smallest square that contains the pixel
    nearest_first = half_side.argsort()
    cumulative = energy[nearest_first].cumsum(0)
    last = nearest_first[int((cumulative < _ENERGY_FRACTION * cumulative[-1]).sum())]
    side = min((2 * float(half_side[last]) + 1) / size, 1.0)
    return max(side, 1 / columns), max(side, 1 / rows)
