"""Image loading, the transform from an image to CNN input, and the mapping from feature-map cells back to the image."""

import dataclasses
import functools
import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Union

import numpy as np
from PIL import ExifTags, Image, ImageOps

from captioning.preprocessing.arrays import array_to_image, tensor_to_image
from captioning.preprocessing.box import Box
from captioning.preprocessing.color import to_srgb
from captioning.preprocessing.download import download, is_url
from captioning.utils.array_ops import is_tensor
from captioning.utils.errors import CaptioningError, MissingFileError

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs

ImageInput = Union[str, os.PathLike[str], bytes, Image.Image, np.ndarray, "torch.Tensor"]
ResizeMode = Literal["stretch", "crop", "pad"]

# Formats are detected from the content. Others that Pillow supports are rarely tested or run external programs (EPS).
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF")
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


def open_image(source: ImageInput, min_side: int | None = None, max_pixels: float = float("inf")) -> Image.Image:
    """Open an image as RGB in the sRGB color space, with the EXIF orientation applied.

    Of an animated file, the first frame is opened.

    Args:
        source: a path, an http(s) URL, the bytes of an image file, a PIL image (which is not modified), a NumPy array
            (H, W, C) or a torch tensor (C, H, W); see :mod:`captioning.preprocessing.arrays` for their values.
        min_side: the JPEG decoder may downscale while decoding, to no less than this side length. This is eight times
            faster for a 12-megapixel photo and a 256-pixel CNN.
        max_pixels: maximum number of pixels of a file. A larger file is rejected before decoding.
    """
    check_image_type(source)
    name = source_name(source)
    try:
        if isinstance(source, np.ndarray):
            return array_to_image(source).convert("RGB")
        if is_tensor(source):
            return tensor_to_image(source).convert("RGB")
        if isinstance(source, Image.Image):
            return _to_upright_srgb(source.copy())
        content = download(str(source)) if is_url(source) else source
        with _open_file(content) as image:
            if image.width * image.height > max_pixels:
                raise CaptioningError(
                    f"{name}: {image.width} × {image.height} pixels exceed the maximum of {max_pixels / 1e6:g} "
                    "megapixels; downscale the image or raise the limit"
                )
            if min_side is not None:
                image.draft("RGB", (min_side, min_side))
            return _to_upright_srgb(image)
    except CaptioningError:
        raise
    except FileNotFoundError:
        raise MissingFileError(f"{name}: no such file; check the path") from None
    except IsADirectoryError:
        raise CaptioningError(f"{name}: is a directory, expected an image file") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise CaptioningError(
            f"{name}: exceeds the maximum number of pixels of Pillow; downscale the image, or raise "
            f"PIL.Image.MAX_IMAGE_PIXELS ({Image.MAX_IMAGE_PIXELS})"
        ) from None
    except Exception as error:  # Pillow decoders raise almost any exception for corrupt or malicious files
        raise CaptioningError(f"{name}: cannot be read as an image ({_reason(source, error)})") from None


def _reason(source: ImageInput, error: Exception) -> str:
    """Why a file cannot be read, and what to do."""
    if source == b"" or (isinstance(source, str | os.PathLike) and not is_url(source) and not os.path.getsize(source)):
        return "the file is empty"
    if "truncated" in str(error):
        return "the file is incomplete; copy or download it again"
    if isinstance(error, Image.UnidentifiedImageError):
        return "not an image, or a format that is not supported; save it as JPEG or PNG"
    return f"{error}; save it as JPEG or PNG"


def is_image(value: object) -> "TypeIs[ImageInput]":
    """Whether the type of a value is one of :data:`ImageInput`."""
    return isinstance(value, str | os.PathLike | bytes | Image.Image | np.ndarray) or is_tensor(value)


def check_image_type(source: object) -> None:
    """Raise CaptioningError if the value is not an image."""
    if not is_image(source):
        hint = "; read the file: file.read()" if hasattr(source, "read") else ""
        raise CaptioningError(
            f"expected an image, got {type(source).__name__}{hint}; an image is a path, URL, bytes, PIL image, NumPy "
            "array (H, W, C) or torch tensor (C, H, W)"
        )


def source_name(source: ImageInput) -> str:
    """Name of an image in error messages: its path or URL, or "image" for data in memory."""
    return str(source) if isinstance(source, str | os.PathLike) else "image"


def read_image_size(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Width and height of an image file with its EXIF orientation, read without decoding the pixels."""
    try:
        with _open_file(path) as image:
            width, height = image.size
            is_rotated = image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
    except (OSError, Image.DecompressionBombError) as error:
        raise CaptioningError(f"{path}: cannot be read as an image ({error}); save it as JPEG or PNG") from None
    return (height, width) if is_rotated else (width, height)


def _open_file(content: str | os.PathLike[str] | bytes) -> Image.Image:
    """Open a file with Pillow, or with pillow-heif if its content is HEIF."""
    file = io.BytesIO(content) if isinstance(content, bytes) else content
    try:
        return Image.open(file, formats=_FORMATS)
    except Image.UnidentifiedImageError:
        if not _is_heif(content):
            raise
    try:
        from pillow_heif import register_heif_opener
    except ModuleNotFoundError:
        raise ValueError("HEIC photos require 'pip install pillow-heif'") from None
    register_heif_opener()
    return Image.open(file, formats=("HEIF",))


def _is_heif(content: str | os.PathLike[str] | bytes) -> bool:
    if isinstance(content, bytes):
        header = content[:12]
    else:
        with open(content, "rb") as file:
            header = file.read(12)
    return header[4:8] == b"ftyp" and header[8:12] in _HEIF_BRANDS


def _to_upright_srgb(image: Image.Image) -> Image.Image:
    """Apply orientation and profile in place where possible: each copy of a 60-megapixel photo takes 240 MB."""
    if not image.width or not image.height:
        raise ValueError("it has no pixels")
    ImageOps.exif_transpose(image, in_place=True)
    return to_srgb(image)


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
        """Return the region of the image that the model receives, in fractions of its sides.

        A padded side extends beyond the image, so its edge is below 0 or above 1.
        """
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

    def __call__(self, image: Image.Image) -> "torch.Tensor":
        """Transform an image to a tensor (3, S, S)."""
        import torch

        return torch.from_numpy(self.to_array(image))

    def to_array(self, image: Image.Image) -> np.ndarray:
        """Transform an image to an array (3, S, S). Does not import torch."""
        return self.normalize(self.resize(image))

    def resize(self, image: Image.Image) -> Image.Image:
        """Resize an image to the input size of the CNN."""
        resample = Image.Resampling[self.interpolation.upper()]
        size = (self.image_size, self.image_size)
        if self.resize_mode == "pad":
            mean_color = tuple(round(255 * value) for value in self.mean)
            return ImageOps.pad(image, size, resample, color=mean_color)
        crop = self.crop_box(*image.size)
        edges = (crop.left * image.width, crop.top * image.height, crop.right * image.width, crop.bottom * image.height)
        return image.resize(size, resample, box=edges)

    def normalize(self, image: Image.Image) -> np.ndarray:
        """Convert an image of the input size to an array (3, S, S)."""
        pixels = np.asarray(image)  # (S, S, 3)
        # A table of the 256 values is several times as fast as arithmetic on all pixels.
        return np.stack([np.take(table, pixels[..., channel]) for channel, table in enumerate(self._normalized_values)])

    @functools.cached_property
    def _normalized_values(self) -> np.ndarray:
        """The normalized value of each 8-bit value in each channel (3, 256)."""
        values = np.arange(256, dtype=np.float32) / 255
        mean, std = (np.asarray(numbers, np.float32)[:, None] for numbers in (self.mean, self.std))
        return (values - mean) / std
