"""Pictures: opened safely, made ready for a CNN, and the way back from the CNN's grid to the photo."""

import dataclasses
import glob
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps

from captioning.errors import CaptioningError

Picture = str | Path | bytes | Image.Image
Fit = Literal["stretch", "crop", "pad"]

IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif"))
# Told by content, not by name. Pillow knows more, some of it through programs of its own (EPS) and little tested.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF")


def find_pictures(names: Sequence[str]) -> tuple[list[Path], list[CaptioningError]]:
    """The pictures that files, folders and globs name, each once, and what was wrong with the others."""
    found: dict[Path, None] = {}
    errors = []
    for name in names:
        try:
            found.update(dict.fromkeys(_expand(name)))
        except CaptioningError as error:
            errors.append(error)
    return list(found), errors


def _expand(name: str) -> Iterator[Path]:
    path = Path(name)
    if path.is_dir():
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file())
        if not inside:
            raise CaptioningError(
                f"{name}: no pictures in this folder (looked for {', '.join(sorted(IMAGE_SUFFIXES))})"
            )
        yield from inside
    elif not path.exists() and glob.has_magic(name):
        matches = sorted(glob.glob(name, recursive=True))
        if not matches:
            raise CaptioningError(f"{name}: matches no file; check the pattern")
        yield from (Path(match) for match in matches if Path(match).is_file())
    else:
        yield path  # if it is missing, opening it says so


def open_image(picture: Picture, smallest_side: int | None = None, most_pixels: float = float("inf")) -> Image.Image:
    """Open a file, bytes or a PIL image as upright RGB.

    Args:
        picture: a path, the bytes of an image file, or an image already open (which is left as it is).
        smallest_side: let the JPEG decoder shrink the picture while it reads, as far as this side allows. Decoding a
            12-megapixel photo for a 256-pixel CNN is eight times faster so.
        most_pixels: refuse a file of more, before any of them is decoded.
    """
    name = "the picture" if isinstance(picture, bytes | Image.Image) else str(picture)
    try:
        if isinstance(picture, Image.Image):
            return _rgb(ImageOps.exif_transpose(picture))
        with Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture, formats=_FORMATS) as image:
            if image.width * image.height > most_pixels:
                raise Image.DecompressionBombError
            if smallest_side is not None:
                image.draft("RGB", (smallest_side, smallest_side))
            return _rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError:
        raise CaptioningError(f"{name}: no such file; check the path") from None
    except IsADirectoryError:
        raise CaptioningError(f"{name}: is a folder, not a picture") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise CaptioningError(f"{name}: has more pixels than is safe to open; scale it down first") from None
    except Exception as error:  # of a file that is damaged or hostile, Pillow's decoders raise nearly any kind
        reason = "not a picture" if isinstance(error, Image.UnidentifiedImageError) else str(error)
        raise CaptioningError(f"{name}: cannot be read as a picture ({reason}); save it again as JPEG or PNG") from None


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):  # Pillow would clip 16-bit grey to white instead of scaling it
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:  # what shines through is white, as on a page
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


class Box(NamedTuple):
    """A rectangle in fractions of a photo's width and height; (0, 0, 1, 1) is the whole photo."""

    left: float
    top: float
    right: float
    bottom: float

    def contains(self, x: float, y: float) -> bool:
        return self.left <= x <= self.right and self.top <= y <= self.bottom

    def grown(self, horizontally: float, vertically: float) -> "Box":
        return Box(self.left - horizontally, self.top - vertically, self.right + horizontally, self.bottom + vertically)


@dataclasses.dataclass(frozen=True)
class Transform:
    """Photo → normalised square of pixels, and back from a cell of a grid over that square to the photo.

    Both directions follow from :meth:`window`, so they cannot disagree.

    Args:
        size: side of the square in pixels.
        mean: per channel, subtracted from pixels in 0…1.
        std: per channel, divided by.
        fit: how a photo that is not square is made so: ``stretch`` it, ``crop`` its middle, or ``pad`` it.
        interpolation: ``bilinear`` or ``bicubic``, as the CNN was trained.
    """

    size: int
    mean: Sequence[float]
    std: Sequence[float]
    fit: Fit = "stretch"
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    def window(self, width: int, height: int) -> Box:
        """The part of a photo that the square shows; beyond 0…1 where the square is padded."""
        if self.fit == "stretch":
            return Box(0, 0, 1, 1)
        side = min(width, height) if self.fit == "crop" else max(width, height)
        across, down = side / width, side / height
        return Box((1 - across) / 2, (1 - down) / 2, (1 + across) / 2, (1 + down) / 2)

    def cell(self, row: int, column: int, grid: tuple[int, int], width: int, height: int) -> Box:
        """The part of the photo (``width`` × ``height``) that a cell of the ``grid`` (rows, columns) covers."""
        window = self.window(width, height)
        across, down = (window.right - window.left) / grid[1], (window.bottom - window.top) / grid[0]
        left, top = window.left + column * across, window.top + row * down
        return Box(max(left, 0), max(top, 0), min(left + across, 1), min(top + down, 1))

    def __call__(self, image: Image.Image) -> torch.Tensor:
        resample = Image.Resampling[self.interpolation.upper()]
        window = self.window(*image.size)
        square = (self.size, self.size)
        if self.fit == "pad":
            grey = tuple(round(255 * value) for value in self.mean)
            image = ImageOps.pad(image, square, resample, color=grey)
        else:
            edges = (
                window.left * image.width,
                window.top * image.height,
                window.right * image.width,
                window.bottom * image.height,
            )
            image = image.resize(square, resample, box=edges)
        pixels = np.asarray(image, dtype=np.float32) / 255  # (size, size, 3)
        pixels = (pixels - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()  # (3, size, size)
