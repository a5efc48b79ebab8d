"""Files made of rendered attention maps: a sheet with a panel per word, full-size frames, and an animation."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw

from captioning.utils.errors import CaptioningError
from captioning.visualization.concentration import half_attention_area
from captioning.visualization.encoding import fit_within
from captioning.visualization.fonts import find_font
from captioning.visualization.legend import percent, sheet_legend, word_details
from captioning.visualization.overlay import AttentionRenderer
from captioning.visualization.text_layout import MUTED_COLOR, TextLayout, draw_word, truncate_to_width
from captioning.visualization.words import is_content_word

DEFAULT_PANEL_WIDTH = 200
MAX_ANIMATION_SIDE = 480  # pixels of the longer side of the image

_MARGIN, _GAP = 24, 12
_TITLE_SIZE, _LABEL_SIZE, _DETAIL_SIZE = 28, 18, 13
_LABEL_HEIGHT = 56  # a line with the word and a line with its details
_BACKGROUND_COLOR, _BORDER_COLOR = (255, 255, 255), (205, 205, 210)
# Panels have the given width between these aspect ratios. Beyond them, panels of tall images are narrower and panels of
# wide images wider, so that all have a similar area; beyond the second pair, images are squeezed.
_MIN_RATIO, _MAX_RATIO = 0.5, 2.5
_MIN_SQUEEZED_RATIO, _MAX_SQUEEZED_RATIO = 0.1, 10
_FRAME_ROWS = 256  # rows of a frame that are rendered at a time
_SEPARATOR = " \u00b7 "


def check_panel_width(panel_width: int) -> None:
    if not 16 <= panel_width <= 4000:
        raise CaptioningError(f"panel_width must be in [16, 4000] pixels, got {panel_width}")


class _Grid(NamedTuple):
    """Sizes of the cells of a sheet; each holds a panel, centered, and the label below it."""

    panel_size: tuple[int, int]
    cell_width: int
    columns: int

    @property
    def width(self) -> int:
        return 2 * _MARGIN + self.columns * (self.cell_width + _GAP) - _GAP

    @property
    def row_height(self) -> int:
        return self.panel_size[1] + _LABEL_HEIGHT + _GAP


def _layout(image: Image.Image, panel_width: int, columns: int, num_panels: int) -> _Grid:
    ratio = min(max(image.width / image.height, _MIN_SQUEEZED_RATIO), _MAX_SQUEEZED_RATIO)
    width = panel_width * min(1, ratio / _MIN_RATIO) * max(1, ratio / _MAX_RATIO)
    cell_width = round(max(width, 0.6 * panel_width))  # wide enough for the label
    max_columns = max(1, columns * (panel_width + _GAP) // (cell_width + _GAP))
    num_rows = -(-num_panels // max_columns)
    return _Grid(
        panel_size=(max(1, round(width)), max(1, round(width / ratio))),
        cell_width=cell_width,
        columns=-(-num_panels // num_rows),  # rows of equal length: 5 + 5 + 4 rather than 6 + 6 + 2
    )


def render_panels(
    image: Image.Image,
    words: Sequence[str],
    renderer: AttentionRenderer,
    panel_width: int = DEFAULT_PANEL_WIDTH,
    columns: int = 6,
    *,
    probs: Sequence[float],
    gates: Sequence[float] | None = None,
) -> Image.Image:
    """Render one sheet: the caption, a panel with the image, then a panel per word with its attention map.

    Args:
        image: the full image.
        words: T words.
        renderer: holds the attention maps of the words.
        panel_width: width of a panel in pixels, for images that are neither very tall nor very wide.
        columns: maximum number of panels of this width per row.
        probs: T probabilities, shown below the words.
        gates: T gates, shown below the words; None without a gate.
    """
    check_panel_width(panel_width)
    grid = _layout(image, panel_width, columns, len(words) + 1)
    small = image.resize(grid.panel_size)
    num_rows = -(-(len(words) + 1) // grid.columns)
    title = TextLayout(words, grid.width - 2 * _MARGIN, _TITLE_SIZE)
    is_soft = renderer.receptive_field is None
    legend = _wrap(sheet_legend(renderer.colormap, not is_soft, gates is not None), grid.width - 2 * _MARGIN)
    top = _MARGIN + title.height + _GAP
    bottom = top + num_rows * grid.row_height
    height = bottom + round(1.5 * _DETAIL_SIZE * len(legend)) + _MARGIN
    sheet = Image.new("RGB", (grid.width, height), _BACKGROUND_COLOR)
    title.draw(sheet, (_MARGIN, _MARGIN))
    _draw_panel(sheet, grid, top, 0, small)
    for index, word in enumerate(words):
        x, y = _draw_panel(sheet, grid, top, index + 1, renderer(small, index))
        area = half_attention_area(renderer.attention_maps[index]) if is_soft else None
        details = word_details(probs[index], area, gates[index] if gates is not None else None)
        _draw_label(sheet, (x, y), grid.cell_width, word, details)
    draw = ImageDraw.Draw(sheet)
    for index, line in enumerate(legend):
        draw.text((_MARGIN, bottom + 1.5 * _DETAIL_SIZE * index), line, MUTED_COLOR, find_font(line, _DETAIL_SIZE))
    return sheet


def _draw_panel(sheet: Image.Image, grid: _Grid, top: int, index: int, panel: Image.Image) -> tuple[int, int]:
    """Draw a panel with a border, which light images need, and return the center of its lower edge."""
    row, column = divmod(index, grid.columns)
    left = _MARGIN + column * (grid.cell_width + _GAP) + (grid.cell_width - panel.width) // 2
    upper = top + row * grid.row_height
    sheet.paste(panel, (left, upper))
    box = (left - 1, upper - 1, left + panel.width, upper + panel.height)
    ImageDraw.Draw(sheet).rectangle(box, outline=_BORDER_COLOR)
    return left + panel.width // 2, upper + panel.height


def _draw_label(sheet: Image.Image, xy: tuple[int, int], width: int, word: str, details: list[str]) -> None:
    draw = ImageDraw.Draw(sheet)
    text, font = truncate_to_width(word, _LABEL_SIZE, width)
    draw_word(draw, (xy[0], xy[1] + 17), text, font, "mm", _LABEL_SIZE, is_content_word(word))
    font = find_font("".join(details), _DETAIL_SIZE)
    while len(details) > 1 and font.getlength(_SEPARATOR.join(details)) > width:
        details = details[:-1]  # a narrow panel shows fewer values
    draw.text((xy[0], xy[1] + 38), _SEPARATOR.join(details), MUTED_COLOR, font, anchor="mm")


def _wrap(text: str, width: int) -> list[str]:
    font = find_font(text, _DETAIL_SIZE)
    lines = [""]
    for word in text.split():
        line = f"{lines[-1]} {word}".strip()
        if font.getlength(line) <= width or not lines[-1]:
            lines[-1] = line
        else:
            lines.append(word)
    return lines


def render_frame_rows(
    image: Image.Image, word: str, prob: float, renderer: AttentionRenderer, word_index: int
) -> Iterator[Image.Image]:
    """Yield a full-size image with the map of a word, some rows at a time, which bounds the memory for large images.

    A label with the word and its probability does not cover the peak of the map.
    """
    size = max(12, max(image.size) // 24)
    label = _frame_label(f"{word}  {percent(prob)}", size, image.width)
    at_bottom = renderer.peak_xy(word_index)[1] < 0.75
    label_top = max(0, image.height - label.height - size // 3) if at_bottom else size // 3
    for top in range(0, image.height, _FRAME_ROWS):
        rows = renderer.render_rows(image, word_index, top, min(top + _FRAME_ROWS, image.height))
        rows.paste(label, (size // 3, label_top - top), label)
        yield rows


def _frame_label(text: str, size: int, image_width: int) -> Image.Image:
    margin = size // 3
    text, font = truncate_to_width(text, size, image_width - 4 * margin)
    label = Image.new("RGBA", (round(font.getlength(text)) + 2 * margin, round(1.6 * size)))
    draw = ImageDraw.Draw(label)
    draw.rounded_rectangle((0, 0, label.width - 1, label.height - 1), margin, (0, 0, 0, 190))
    draw.text((margin, 1.15 * size), text, (*_BACKGROUND_COLOR, 255), font, anchor="ls")
    return label


def render_animation(image: Image.Image, words: Sequence[str], renderer: AttentionRenderer) -> Iterator[Image.Image]:
    """Yield the image, then one frame per word with its map; the caption below highlights the current word."""
    small = fit_within(image, MAX_ANIMATION_SIDE)
    width = max(small.width, MAX_ANIMATION_SIDE // 2)  # a tall image leaves room for the caption
    caption = TextLayout(words, width - 2 * _GAP, _LABEL_SIZE)
    for word_index in (None, *range(len(words))):
        frame = Image.new("RGB", (width, small.height + caption.height + 2 * _GAP), _BACKGROUND_COLOR)
        panel = small if word_index is None else renderer(small, word_index)
        frame.paste(panel, ((width - small.width) // 2, 0))
        caption.draw(frame, (_GAP, small.height + _GAP), word_index)
        yield frame
