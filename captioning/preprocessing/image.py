"""Image loading, the transform from an image to CNN input, and the mapping from feature-map cells back to the image."""

import dataclasses
import glob
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps

from captioning.utils.errors import CaptioningError

ImageInput = str | Path | bytes | Image.Image
ResizeMode = Literal["stretch", "crop", "pad"]

IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif"))
# Formats are detected from the content. Others that Pillow supports are rarely tested or run external programs (EPS).
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF")


def find_images(patterns: Sequence[str]) -> tuple[list[Path], list[CaptioningError]]:
    """Expand files, directories and glob patterns to unique image paths.

    Returns:
        The image paths, and one error for each pattern without an image.
    """
    found: dict[Path, None] = {}
    errors = []
    for pattern in patterns:
        try:
            found.update(dict.fromkeys(_expand(pattern)))
        except CaptioningError as error:
            errors.append(error)
    return list(found), errors


def _expand(pattern: str) -> Iterator[Path]:
    path = Path(pattern)
    if path.is_dir():
        images = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file())
        if not images:
            suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
            raise CaptioningError(f"{pattern}: no images in this directory (expected files ending in {suffixes})")
        yield from images
    elif not path.exists() and glob.has_magic(pattern):
        matches = sorted(glob.glob(pattern, recursive=True))
        if not matches:
            raise CaptioningError(f"{pattern}: no file matches; check the pattern")
        yield from (Path(match) for match in matches if Path(match).is_file())
    else:
        yield path  # open_image reports a missing file


def open_image(source: ImageInput, min_side: int | None = None, max_pixels: float = float("inf")) -> Image.Image:
    """Open an image as RGB, with the EXIF orientation applied.

    Args:
        source: a path, the bytes of an image file, or a PIL image (which is not modified).
        min_side: the JPEG decoder may downscale while decoding, to no less than this side length. This is eight times
            faster for a 12-megapixel photo and a 256-pixel CNN.
        max_pixels: maximum number of pixels of a file. A larger file is rejected before decoding.
    """
    name = "image" if isinstance(source, bytes | Image.Image) else str(source)
    try:
        if isinstance(source, Image.Image):
            return _to_rgb(ImageOps.exif_transpose(source))
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise Image.DecompressionBombError
            if min_side is not None:
                image.draft("RGB", (min_side, min_side))
            return _to_rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError:
        raise CaptioningError(f"{name}: no such file; check the path") from None
    except IsADirectoryError:
        raise CaptioningError(f"{name}: is a directory, expected an image file") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise CaptioningError(f"{name}: exceeds the maximum number of pixels; downscale the image first") from None
    except Exception as error:  # Pillow decoders raise almost any exception for corrupt or malicious files
        reason = "not an image" if isinstance(error, Image.UnidentifiedImageError) else str(error)
        raise CaptioningError(f"{name}: cannot be read as an image ({reason}); save it as JPEG or PNG") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):  # Pillow clips 16-bit grayscale to white instead of rescaling it
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:  # composite on white, the usual page background
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


class Box(NamedTuple):
    """A rectangle in fractions of the image width and height; (0, 0, 1, 1) is the whole image."""

    left: float
    top: float
    right: float
    bottom: float

    def contains(self, x: float, y: float) -> bool:
        return self.left <= x <= self.right and self.top <= y <= self.bottom

    def expand(self, dx: float, dy: float) -> "Box":
        """Move the left and right edges outward by ``dx``, the top and bottom edges by ``dy``."""
        return Box(self.left - dx, self.top - dy, self.right + dx, self.bottom + dy)


@dataclasses.dataclass(frozen=True)
class ImageTransform:
    """Transform from an image to a normalized square tensor, and from feature-map cells back to image regions.

    Both directions derive from :meth:`crop_box`, so they are consistent.

    Args:
        image_size: side length of the square in pixels.
        mean: mean of each channel, for pixel values in [0, 1].
        std: standard deviation of each channel.
        resize_mode: conversion of a non-square image to a square: ``stretch`` ignores the aspect ratio, ``crop`` takes
            the center square, ``pad`` adds borders in the mean color.
        interpolation: ``bilinear`` or ``bicubic``, as used in the training of the CNN.
    """

    image_size: int
    mean: Sequence[float]
    std: Sequence[float]
    resize_mode: ResizeMode = "stretch"
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    def crop_box(self, width: int, height: int) -> Box:
        """Return the image region that the square covers. Edges lie outside [0, 1] where the square is padded."""
        if self.resize_mode == "stretch":
            return Box(0, 0, 1, 1)
        side = min(width, height) if self.resize_mode == "crop" else max(width, height)
        box_width, box_height = side / width, side / height
        return Box((1 - box_width) / 2, (1 - box_height) / 2, (1 + box_width) / 2, (1 + box_height) / 2)

    def cell_box(self, row: int, column: int, grid_size: tuple[int, int], width: int, height: int) -> Box:
        """Return the region of the image (``width`` × ``height``) under one cell of the grid (rows, columns)."""
        crop = self.crop_box(width, height)
        cell_width, cell_height = (crop.right - crop.left) / grid_size[1], (crop.bottom - crop.top) / grid_size[0]
        left, top = crop.left + column * cell_width, crop.top + row * cell_height
        return Box(max(left, 0), max(top, 0), min(left + cell_width, 1), min(top + cell_height, 1))

    def __call__(self, image: Image.Image) -> torch.Tensor:
        resample = Image.Resampling[self.interpolation.upper()]
        size = (self.image_size, self.image_size)
        if self.resize_mode == "pad":
            mean_color = tuple(round(255 * value) for value in self.mean)
            image = ImageOps.pad(image, size, resample, color=mean_color)
        else:
            crop = self.crop_box(*image.size)
            edges = (
                crop.left * image.width,
                crop.top * image.height,
                crop.right * image.width,
                crop.bottom * image.height,
            )
            image = image.resize(size, resample, box=edges)
        pixels = np.asarray(image, dtype=np.float32) / 255  # (image_size, image_size, 3)
        pixels = (pixels - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()  # (3, image_size, image_size)
