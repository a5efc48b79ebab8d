"""Text of overlays: a caption wrapped into lines, with content words emphasized, and labels of limited width."""

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw

from captioning.visualization.fonts import Font, find_font, is_right_to_left
from captioning.visualization.overlay import HIGHLIGHT_COLOR
from captioning.visualization.words import is_content_word, sentence_case

TEXT_COLOR, MUTED_COLOR = (20, 20, 20), (110, 110, 116)
_EMPHASIS = 0.03  # stroke width of content words relative to the font size; Pillow's default font has no bold style


class _PlacedWord(NamedTuple):
    text: str
    font: Font
    left: float
    baseline: float
    width: float
    is_content: bool


class TextLayout:
    """Words of a caption in sentence case, wrapped into lines, each in a font that contains its characters.

    Args:
        words: words of the caption.
        width: maximum length of a line in pixels.
        size: font size in pixels.
    """

    def __init__(self, words: Sequence[str], width: int, size: int) -> None:
        self._words: list[_PlacedWord] = []
        self._size = size
        line_height = round(1.6 * size)
        right_to_left = is_right_to_left(" ".join(words))
        offset, line = 0.0, 0
        for word, shown in zip(words, sentence_case(list(words)), strict=True):
            text, font = truncate_to_width(shown, size, width)
            length = font.getlength(text)
            if offset and offset + length > width:
                offset, line = 0.0, line + 1
            left = width - offset - length if right_to_left else offset
            baseline = line * line_height + 0.75 * line_height
            self._words.append(_PlacedWord(text, font, left, baseline, length, is_content_word(word)))
            offset += length + 0.35 * size
        self.height = (line + 1) * line_height

    def draw(self, image: Image.Image, top_left: tuple[int, int], highlighted: int | None = None) -> None:
        """Draw the words with their upper left corner at ``top_left``, one of them with a highlighted background."""
        draw = ImageDraw.Draw(image)
        for index, (text, font, left, baseline, width, is_content) in enumerate(self._words):
            x, y = top_left[0] + left, top_left[1] + baseline
            if index == highlighted:
                margin = self._size / 6
                box = (x - margin, y - 1.1 * self._size, x + width + margin, y + 0.45 * self._size)
                draw.rounded_rectangle(box, self._size / 4, HIGHLIGHT_COLOR)
            draw_word(draw, (x, y), text, font, "ls", self._size, is_content)


def draw_word(
    draw: ImageDraw.ImageDraw,
    xy: tuple[float, float],
    text: str,
    font: Font,
    anchor: str,
    size: int,
    is_content: bool,
) -> None:
    """Draw a word: content words dark and bold, function words gray."""
    color = TEXT_COLOR if is_content else MUTED_COLOR
    draw.text(xy, text, color, font, anchor=anchor, stroke_width=_EMPHASIS * size if is_content else 0)


def truncate_to_width(text: str, size: int, width: float) -> tuple[str, Font]:
    """Return the text, truncated to ``width`` pixels where necessary, and a font for it."""
    font = find_font(text, size)
    kept = text
    while kept and font.getlength(text) > width:
        kept = kept[:-1]
        text = f"{kept}.."
    return text, font
