"""Maps → pictures, with Pillow alone: no display is needed."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from captioning.images import Box

_DIM = 0.25  # what is left of the light where the model did not look
_GAP = 12
_FONT_SIZE = 18
_LABEL_HEIGHT = 30
_INK, _PAPER = (20, 20, 20), (255, 255, 255)


def spotlight(photo: Image.Image, weights: np.ndarray, window: Box) -> Image.Image:
    """The photo lit where the map is high and dimmed elsewhere.

    Args:
        photo: the whole photo, at the size wanted.
        weights: (rows, columns), one map.
        window: the part of the photo that the map lies on; the rest of the photo was not seen, and stays dim.
    """
    left, top = round(window.left * photo.width), round(window.top * photo.height)
    right, bottom = round(window.right * photo.width), round(window.bottom * photo.height)
    light = Image.fromarray((weights / weights.max()).astype(np.float32))
    light = light.resize((right - left, bottom - top), Image.Resampling.BICUBIC)
    mask = Image.new("F", photo.size, 0)
    mask.paste(light, (left, top))
    bright = np.clip(np.asarray(mask), 0, 1)
    level = Image.fromarray((255 * (_DIM + (1 - _DIM) * bright)).astype(np.uint8))
    return Image.composite(photo, Image.new("RGB", photo.size), level)


def panels(
    photo: Image.Image,
    words: Sequence[str],
    maps: np.ndarray,
    window: Box,
    panel_width: int = 200,
    columns: int = 6,
) -> Image.Image:
    """One picture: the photo, then the photo once per word with that word's map and the word below it.

    Args:
        photo: the whole photo.
        words: T words.
        maps: (T, rows, columns).
        window: the part of the photo that the maps lie on.
        panel_width: of each panel, in pixels.
        columns: panels in a row.
    """
    small = photo.resize((panel_width, max(1, round(panel_width * photo.height / photo.width))))
    pictures = [small, *(spotlight(small, weights, window) for weights in maps)]
    labels = ["", *words]
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    font = ImageFont.load_default(_FONT_SIZE)
    width = columns * (panel_width + _GAP) + _GAP
    title = _wrapped(" ".join(words), font, width - 2 * _GAP)
    title_height = _GAP + len(title) * _LABEL_HEIGHT
    sheet = Image.new("RGB", (width, title_height + rows * (small.height + _LABEL_HEIGHT + _GAP)), _PAPER)
    pen = ImageDraw.Draw(sheet)
    for number, line in enumerate(title):
        pen.text((_GAP, _GAP + number * _LABEL_HEIGHT), line, _INK, font)
    for number, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        left = _GAP + (number % columns) * (panel_width + _GAP)
        top = title_height + (number // columns) * (small.height + _LABEL_HEIGHT + _GAP)
        sheet.paste(picture, (left, top))
        middle = (left + panel_width / 2, top + small.height + _LABEL_HEIGHT / 2)
        pen.text(middle, _shortened(label, font, panel_width), _INK, font, anchor="mm")
    return sheet


def _wrapped(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and font.getlength(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(_shortened(word, font, width))
    return lines


def _shortened(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    while len(text) > 1 and font.getlength(text) > width:
        text = text[:-2] + "…"
    return text
