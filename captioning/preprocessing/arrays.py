"""Conversion of NumPy arrays and torch tensors to PIL images."""

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from captioning.utils.errors import CaptioningError

if TYPE_CHECKING:
    import torch

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def array_to_image(array: np.ndarray) -> Image.Image:
    """Convert an array (H, W) or (H, W, C) with 1, 3 or 4 channels.

    Integers are in [0, 255] (``uint16`` in [0, 65535]), floats and booleans in [0, 1]. Other values raise
    CaptioningError, since they would be clipped to a blank image.
    """
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] not in _MODES):
        raise CaptioningError(
            f"image: expected a NumPy array of shape (H, W) or (H, W, C) with 1, 3 or 4 channels, got {array.shape}; "
            "transpose it, or pass a batch as list(images)"
        )
    return _to_image(array)


def tensor_to_image(tensor: "torch.Tensor") -> Image.Image:
    """Convert a tensor (H, W) or (C, H, W), the layout of torchvision, with the values of :func:`array_to_image`."""
    if tensor.ndim not in (2, 3) or (tensor.ndim == 3 and tensor.shape[0] not in _MODES):
        raise CaptioningError(
            f"image: expected a torch tensor of shape (H, W) or (C, H, W) with 1, 3 or 4 channels, got "
            f"{tuple(tensor.shape)}; permute it, or pass a batch as list(images)"
        )
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # NumPy has no such type
        tensor = tensor.float()
    return _to_image((tensor.movedim(0, -1) if tensor.ndim == 3 else tensor).numpy())


def _to_image(array: np.ndarray) -> Image.Image:
    if array.size == 0:
        raise CaptioningError(f"image: the array of shape {array.shape} has no pixels")
    pixels = _to_uint8(array)
    if pixels.ndim == 3 and pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    return Image.fromarray(np.ascontiguousarray(pixels))


def _to_uint8(array: np.ndarray) -> np.ndarray:
    kind = array.dtype.kind
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.uint16:
        if 0 < array.max() <= 255:
            raise CaptioningError("image: values of uint16 must be in [0, 65535], got at most 255; convert it to uint8")
        return (array >> 8).astype(np.uint8)
    if kind not in "biuf":
        raise CaptioningError(f"image: expected an array of integers or floats, got {array.dtype}")
    limit, tolerance = (
        (255, 0.0) if kind in "iu" else (1, 1e-3)
    )  # interpolation exceeds the range of floats by rounding
    low, high = array.min(), array.max()
    if not (low >= -tolerance and high <= limit + tolerance):  # also true for NaN
        hint = "; undo the normalization, or divide by 255" if kind == "f" else ""
        raise CaptioningError(
            f"image: values of {array.dtype} must be in [0, {limit}], got [{low:.4g}, {high:.4g}]{hint}"
        )
    return (array.clip(0, limit) * (255 / limit)).round().astype(np.uint8)
