import numpy as np
import pytest
import torch

from captioning.preprocessing.image import open_image
from captioning.utils.errors import CaptioningError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "array",
    [PIXELS, PIXELS / 255, (PIXELS / 255).astype(np.float32), PIXELS.astype(np.int64), PIXELS.astype(np.uint16) * 257],
)
def test_arrays_and_tensors_equal_the_image(array: np.ndarray) -> None:
    np.testing.assert_array_equal(np.asarray(open_image(array)), PIXELS)
    if array.dtype != np.uint16:
        tensor = torch.from_numpy(array).permute(2, 0, 1)
        np.testing.assert_array_equal(np.asarray(open_image(tensor)), PIXELS)


def test_half_precision_tensors_are_accepted() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        tensor = torch.full((3, 4, 4), 0.5, dtype=dtype, requires_grad=True)
        assert open_image(tensor).getpixel((0, 0)) == (128, 128, 128)


def test_values_beyond_one_by_rounding_are_clipped() -> None:
    array = np.full((2, 2, 3), 1 + 1e-6, np.float32)
    assert open_image(array).getpixel((0, 0)) == (255, 255, 255)


def test_channels() -> None:
    gray = PIXELS[..., 0]
    for array in (gray, gray[..., None]):
        np.testing.assert_array_equal(np.asarray(open_image(array)), np.repeat(gray[..., None], 3, axis=2))
    transparent = np.concatenate((PIXELS, np.zeros_like(PIXELS[..., :1])), axis=-1)
    assert open_image(transparent).size == (30, 20)
    np.testing.assert_array_equal(np.asarray(open_image(gray > 127))[..., 0], np.where(gray > 127, 255, 0))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (PIXELS.transpose(2, 0, 1), r"NumPy array of shape \(H, W\) or \(H, W, C\).*got \(3, 20, 30\); transpose it"),
        (PIXELS[None], r"pass a batch as list\(images\)"),
        (torch.from_numpy(PIXELS), r"torch tensor of shape \(H, W\) or \(C, H, W\).*got \(20, 30, 3\); permute it"),
        (PIXELS.astype(np.float32), r"values of float32 must be in \[0, 1\], got \[0, 255\]; .* divide by 255"),
        (np.full((4, 4), np.nan), "must be in"),
        (PIXELS.astype(np.int32) - 1, r"values of int32 must be in \[0, 255\], got \[-1, 254\]"),
        (np.zeros((0, 4, 3)), "has no pixels"),
        (np.zeros((4, 4), complex), "expected an array of integers or floats, got complex128"),
    ],
)
def test_other_arrays_are_refused_in_one_line(image: np.ndarray | torch.Tensor, message: str) -> None:
    with pytest.raises(CaptioningError, match=message) as caught:
        open_image(image)
    assert "\n" not in str(caught.value)
