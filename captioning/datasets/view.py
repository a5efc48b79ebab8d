"""Views of an image: the image itself, its mirror image, and random crops, each as it is or reencoded."""

import hashlib
import io
from typing import NamedTuple

from PIL import Image

from captioning.preprocessing.image import Box

MIN_CROP_SCALE = 0.6  # of width and height; smaller crops lose objects that the captions mention
WHOLE_IMAGE = Box(0, 0, 1, 1)

_FILTERS = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS)
_RESCALE_RANGE = (0.8, 2.5)
_JPEG_QUALITIES = (30, 95)


class View(NamedTuple):
    """Geometry of a view: a region of the image, which is flipped horizontally afterwards.

    Args:
        flipped: whether the region is flipped.
        crop_box: the region, in fractions of the image.
    """

    flipped: bool = False
    crop_box: Box = WHOLE_IMAGE

    def crop(self, image: Image.Image) -> Image.Image:
        """Return the region of an image, not flipped."""
        if self.crop_box == WHOLE_IMAGE:
            return image
        left, top, right, bottom = self.crop_box
        width, height = image.size
        return image.crop((round(left * width), round(top * height), round(right * width), round(bottom * height)))


class ViewKey(NamedTuple):
    """Identifier of a view, independent of the image: its ``str`` is ``0``, ``flip``, ``crop<i>`` or ``crop<i>-flip``.

    Args:
        crop: number of the random crop; None for the whole image.
        flipped: whether the view is flipped horizontally.
        reencoded: whether the image is resized and compressed by random amounts first; appends ``-reencoded``.
    """

    crop: int | None = None
    flipped: bool = False
    reencoded: bool = False

    def __str__(self) -> str:
        suffix = "-reencoded" if self.reencoded else ""
        if self.crop is None:
            return f"{'flip' if self.flipped else '0'}{suffix}"
        return f"crop{self.crop}{'-flip' if self.flipped else ''}{suffix}"

    def locate(self, content_hash: str) -> View:
        """Return the geometry of this view for the image with this content hash."""
        return View(self.flipped, WHOLE_IMAGE if self.crop is None else random_crop_box(content_hash, self.crop))


def train_view_keys(hflip: bool, num_crops: int, reencode: bool = False) -> list[ViewKey]:
    """Return the views to train on: the image, its mirror image with ``hflip``, then the crops.

    With ``hflip`` every second crop is flipped. With ``reencode`` all views are reencoded.
    """
    whole = [ViewKey(), ViewKey(flipped=True)] if hflip else [ViewKey()]
    keys = [*whole, *(ViewKey(crop, hflip and crop % 2 == 1) for crop in range(num_crops))]
    return [key._replace(reencoded=reencode) for key in keys]


def random_crop_box(content_hash: str, number: int) -> Box:
    """Return a random region with 60 to 100 % of the width and of the height of an image.

    It depends only on the arguments, so that cached features of a crop can be reused in any dataset.
    """
    draws = _random_numbers(f"{content_hash} {number}")
    width, height = (MIN_CROP_SCALE + (1 - MIN_CROP_SCALE) * draw for draw in draws[:2])
    left, top = draws[2] * (1 - width), draws[3] * (1 - height)
    return Box(left, top, left + width, top + height)


def reencode(image: Image.Image, content_hash: str, key: ViewKey) -> Image.Image:
    """Simulate an image that another program has saved: resize it, compress it as JPEG, both, or neither.

    Each operation has probability 1/2. The result depends only on the arguments, as for :func:`random_crop_box`.
    """
    resize_draw, scale_draw, jpeg_draw, quality_draw = _random_numbers(f"{content_hash} {key}")
    if resize_draw < 0.5:
        smallest, largest = _RESCALE_RANGE
        scale = smallest * (largest / smallest) ** scale_draw
        resample = _FILTERS[int(2 * resize_draw * len(_FILTERS))]
        image = image.resize((round(scale * image.width), round(scale * image.height)), resample)
    if jpeg_draw < 0.5:
        lowest, highest = _JPEG_QUALITIES
        file = io.BytesIO()
        image.save(file, "JPEG", quality=round(lowest + (highest - lowest) * quality_draw))
        image = Image.open(file).convert("RGB")
    return image


def _random_numbers(name: str) -> list[float]:
    """Four numbers, uniform in [0, 1), that depend on the name only."""
    digest = hashlib.sha256(name.encode()).digest()
    return [int.from_bytes(digest[start : start + 8]) / 2**64 for start in range(0, 32, 8)]
