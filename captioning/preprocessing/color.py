"""Conversion of a decoded image of any mode and color profile to 8-bit sRGB."""

import functools
import io

import numpy as np
from PIL import Image, ImageCms

# Modes for which a color profile describes the pixel values as they are.
_PROFILE_MODES = ("RGB", "CMYK", "L")


def to_srgb(image: Image.Image) -> Image.Image:
    """Convert an image to mode RGB in the sRGB color space, in place if it is RGB already.

    Transparent pixels are composited on white, the usual page background. An embedded ICC profile (Display P3, Adobe
    RGB, CMYK, …) is applied; without one, values are taken as sRGB. Single-channel images of more than 8 bits are
    rescaled, which Pillow does not do.

    Raises:
        ValueError: float values outside of [0, 1] and [0, 255], or integers above 65535.
    """
    profile = image.info.get("icc_profile")
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        image = Image.fromarray(_to_uint8(np.asarray(image)))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    elif image.mode not in _PROFILE_MODES:
        image = image.convert("RGB")
    transform = _srgb_transform(profile, image.mode) if profile else None
    if transform is not None:
        return ImageCms.applyTransform(image, transform, inPlace=image.mode == "RGB") or image
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_uint8(values: np.ndarray) -> np.ndarray:
    """Rescale a single channel of 32-bit integers or floats."""
    low, high = (float(values.min()), float(values.max())) if np.isfinite(values).all() else (-1, -1)
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        return (255 * values).round().astype(np.uint8)
    if low >= 0 and high <= 255:
        return values.round().astype(np.uint8)
    if values.dtype.kind == "i" and low >= 0 and high < 65536:
        return (values >> 8).astype(np.uint8)
    raise ValueError("pixel values must be in [0, 1], in [0, 255] or 16-bit integers")


@functools.lru_cache(maxsize=64)
def _srgb_transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """The transform from an ICC profile to sRGB; None if it would change no pixel, or if the profile is unusable."""
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError):  # a corrupt profile, or one for another mode: viewers ignore it as well
        return None
    return None if mode == "RGB" and _is_identity(transform) else transform


def _is_identity(transform: ImageCms.ImageCmsTransform) -> bool:
    """Whether an RGB transform changes no color by more than rounding, as for the many variants of sRGB."""
    levels = np.arange(0, 256, 51, dtype=np.uint8)
    colors = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(-1, 6, 3)  # (36, 6, 3)
    converted = np.asarray(ImageCms.applyTransform(Image.fromarray(colors), transform))
    return bool(np.abs(converted.astype(int) - colors).max() <= 1)
