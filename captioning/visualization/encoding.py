"""Image encoding: whole images in memory, and large PNG images row by row to a file."""

import io
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SUB_FILTER = 1  # each byte minus the same channel of the pixel to its left


def fit_within(image: Image.Image, max_side: int) -> Image.Image:
    """Return the image, downscaled where necessary to at most ``max_side`` pixels per side."""
    if max(image.size) <= max_side:
        return image
    return ImageOps.contain(image, (max_side, max_side))  # unlike Image.thumbnail, needs no copy of the image


def encode_jpeg(image: Image.Image, max_side: int) -> bytes:
    """Encode an image as JPEG, downscaled to at most ``max_side`` pixels per side."""
    buffer = io.BytesIO()
    fit_within(image, max_side).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def encode_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    # For photos, zlib's default strategy is five times slower (seconds for 12 megapixels) and saves no space.
    image.save(buffer, "PNG", compress_type=zlib.Z_RLE)
    return buffer.getvalue()


def write_png_rows(path: Path, size: tuple[int, int], bands: Iterable[Image.Image]) -> None:
    """Write an RGB image of ``size`` that arrives as bands of rows from top to bottom. Only one band is in memory."""
    compressor = zlib.compressobj(level=6, strategy=zlib.Z_RLE)
    with path.open("wb") as file:
        header = struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0)  # 8 bits per channel, RGB, no interlacing
        file.write(_SIGNATURE + _chunk(b"IHDR", header))
        for band in bands:
            file.write(_chunk(b"IDAT", compressor.compress(_filter(np.asarray(band)))))
        file.write(_chunk(b"IDAT", compressor.flush()) + _chunk(b"IEND", b""))


def _filter(pixels: np.ndarray) -> bytes:
    """Apply the Sub filter to rows of pixels (rows, columns, 3)."""
    filtered = pixels.copy()
    filtered[:, 1:] -= pixels[:, :-1]  # modulo 256, as the format requires
    rows = filtered.reshape(len(pixels), -1)
    return np.pad(rows, ((0, 0), (1, 0)), constant_values=_SUB_FILTER).tobytes()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
