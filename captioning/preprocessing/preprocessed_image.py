"""An image prepared for the encoder, together with what later steps need to show the original."""

import io
import math
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from captioning.preprocessing.download import download, is_url
from captioning.preprocessing.image import Box, ImageInput, ImageTransform, open_image
from captioning.preprocessing.photo_check import resembles_photo

_PREVIEW_SIDE = 640  # pixels of the longer side


class PreprocessedImage(NamedTuple):
    """An image that is opened, resized and normalized.

    ``source`` can be opened again: a path, the bytes of a file, or an RGB image that no caller can modify.
    """

    source: ImageInput
    pixels: np.ndarray  # (3, image_size, image_size)
    crop_box: Box
    preview: bytes | None = None  # small JPEG of a file on disk, which may be deleted
    resembles_photo: bool = True


def preprocess_image(image: ImageInput, transform: ImageTransform, max_pixels: float = math.inf) -> PreprocessedImage:
    """Open and transform an image. Thread-safe.

    Args:
        image: path, URL, bytes, PIL image, NumPy array or torch tensor, see
            :func:`captioning.preprocessing.image.open_image`.
        transform: the transform of the encoder.
        max_pixels: a file with more pixels raises CaptioningError before it is decoded.
    """
    source: ImageInput = download(str(image)) if is_url(image) else image
    is_encoded = isinstance(source, str | os.PathLike | bytes)
    opened = open_image(source, transform.image_size if is_encoded else None, max_pixels)
    preview = None
    if isinstance(source, str | os.PathLike):
        preview = _encode_preview(opened)
        source = Path(source).absolute()  # the working directory may change before the file is opened again
    elif not is_encoded:
        source = opened
    resized = transform.resize(opened)
    crop_box = transform.crop_box(*opened.size)
    return PreprocessedImage(source, transform.normalize(resized), crop_box, preview, resembles_photo(resized))


def _encode_preview(image: Image.Image) -> bytes:
    small = image.copy()
    small.thumbnail((_PREVIEW_SIDE, _PREVIEW_SIDE), reducing_gap=2)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
