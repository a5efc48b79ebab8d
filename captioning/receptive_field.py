"""How much of the picture one place sees, found by asking the encoder itself.

The theoretical field of a deep CNN covers everything; what counts lies in the middle of it (Luo et al. 2016,
"Understanding the Effective Receptive Field in Deep Convolutional Neural Networks").
"""

import torch

from captioning.encoders import Encoder

_SHARE = 0.95  # of the squared gradient that the field must hold
_DRAWS = 2  # of noise; more of them move the edge by a pixel


def receptive_field(encoder: Encoder) -> tuple[float, float]:
    """Width and height, as shares of the encoder's square, of what a place in the middle sees.

    It is the smallest square around the place that holds 95 % of the squared gradient of its annotation with respect to
    the pixels of noise.
    """
    size, (rows, columns) = encoder.transform.size, encoder.grid
    row, column = rows // 2, columns // 2
    device = next(encoder.parameters()).device
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.enable_grad():
        pixels = torch.randn(_DRAWS, 3, size, size, generator=generator).to(device).requires_grad_()
        annotation = encoder(pixels)[:, row * columns + column]  # (draws, D)
        # Along a random direction the mean square of the gradient is that of the whole Jacobian.
        direction = torch.randn(annotation.shape, generator=generator).to(device)
        (gradient,) = torch.autograd.grad(annotation, pixels, direction)
    energy = gradient.square().sum((0, 1)).flatten().cpu()  # (size²)
    middles = torch.arange(size) + 0.5
    down, across = (middles - (row + 0.5) * size / rows).abs(), (middles - (column + 0.5) * size / columns).abs()
    reach = torch.maximum(down[:, None], across[None]).flatten()  # half the side of the square that reaches the pixel
    nearest_first = reach.argsort()
    held = energy[nearest_first].cumsum(0)
    last = nearest_first[int((held < _SHARE * held[-1]).sum())]
    side = min((2 * float(reach[last]) + 1) / size, 1.0)
    return max(side, 1 / columns), max(side, 1 / rows)
