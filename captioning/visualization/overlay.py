"""Attention overlays rendered with Pillow; no display is required."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from captioning.preprocessing.image import Box
from captioning.utils.errors import CaptioningError
from captioning.visualization.fonts import Font, find_font, is_right_to_left

# Gradient stops from low to high attention: red, green, blue, and the alpha of the color at an opacity of 1.
COLORMAPS: dict[str, tuple[tuple[float, float, float, float], ...]] = {
    "spotlight": ((0, 0, 0, 1), (0, 0, 0, 0)),  # darkens the image where attention is low
    "hot": ((0, 0, 0, 1), (150, 0, 20, 1), (230, 60, 0, 1), (255, 165, 0, 1), (255, 245, 160, 1)),
    "viridis": (
        *((68, 1, 84, 1), (71, 44, 122, 1), (59, 81, 139, 1), (44, 113, 142, 1), (33, 144, 141, 1)),
        *((39, 173, 129, 1), (92, 200, 99, 1), (170, 220, 50, 1), (253, 231, 37, 1)),
    ),
}
DEFAULT_OPACITY = 0.75
DEFAULT_PANEL_WIDTH = 200
MAX_ANIMATION_SIDE = 480  # pixels of the longer side of the image

_GAP = 12
_MAX_ASPECT_RATIO = 8  # of a panel; a taller image is squeezed, since its panels would need gigabytes
_FONT_SIZE = 18
_LINE_HEIGHT = 30
_TEXT_COLOR, _BACKGROUND_COLOR, _HIGHLIGHT_COLOR = (20, 20, 20), (255, 255, 255), (255, 213, 74)


def colormap_stops(colormap: str, opacity: float) -> list[list[float]]:
    """Gradient stops [red, green, blue, alpha] from low to high attention, in the format of viewer.js."""
    if colormap not in COLORMAPS:
        raise CaptioningError(f"unknown colormap '{colormap}'; choose one of {', '.join(COLORMAPS)}")
    if not 0 <= opacity <= 1:
        raise CaptioningError(f"opacity must be in [0, 1], got {opacity}; 0 hides the map, 1 hides the image")
    return [[*color, round(alpha * opacity, 4)] for *color, alpha in COLORMAPS[colormap]]


def check_panel_width(panel_width: int) -> None:
    if not 16 <= panel_width <= 4000:
        raise CaptioningError(f"panel_width must be in [16, 4000] pixels, got {panel_width}")


class AttentionRenderer:
    """Renders the attention map of a word on top of the image.

    Args:
        attention_maps: (T, rows, columns), one per word.
        crop_box: the part of the image that the maps cover. The model does not receive the rest of the image, which is
            rendered as zero attention.
        receptive_field: for hard attention, width and height of the receptive field of one location, in fractions of
            the image. None for soft attention.
        colormap: a key of :data:`COLORMAPS`.
        opacity: maximum opacity of the colors, 0 to 1.
    """

    def __init__(
        self,
        attention_maps: np.ndarray,
        crop_box: Box,
        receptive_field: tuple[float, float] | None = None,
        colormap: str = "spotlight",
        opacity: float = DEFAULT_OPACITY,
    ) -> None:
        stops = np.array(colormap_stops(colormap, opacity)) * (1, 1, 1, 255)  # (stops, 4)
        levels = np.linspace(0, len(stops) - 1, 256)
        self._lookup_tables = [
            np.interp(levels, range(len(stops)), channel).round().astype(int).tolist() for channel in stops.T
        ]
        self.attention_maps = attention_maps
        self.crop_box = crop_box
        self.receptive_field = receptive_field

    def __call__(self, image: Image.Image, word_index: int) -> Image.Image:
        """Render the map of a word on a copy of the image, which may have any size."""
        if self.receptive_field is None:
            return self._render_soft(image, self.attention_maps[word_index])
        return self._render_hard(image, word_index, self.receptive_field)

    def peak_xy(self, word_index: int) -> tuple[float, float]:
        """Center of the cell with the highest attention weight, in fractions of the image."""
        rows, columns = self.attention_maps.shape[1:]
        row, column = divmod(int(self.attention_maps[word_index].argmax()), columns)
        left, top, right, bottom = self.crop_box
        return left + (column + 0.5) / columns * (right - left), top + (row + 0.5) / rows * (bottom - top)

    def _render_soft(self, image: Image.Image, attention_map: np.ndarray) -> Image.Image:
        left, top, right, bottom = _to_pixels(self.crop_box, image)
        grid = Image.fromarray((255 * attention_map / max(attention_map.max(), 1e-9)).round().astype(np.uint8))
        levels = Image.new("L", image.size)
        levels.paste(grid.resize((right - left, bottom - top), Image.Resampling.BICUBIC), (left, top))
        *channels, alpha = (levels.point(table) for table in self._lookup_tables)
        return Image.composite(Image.merge("RGB", channels), image, alpha)

    def _render_hard(self, image: Image.Image, word_index: int, receptive_field: tuple[float, float]) -> Image.Image:
        """Render a single location: its cell, its receptive field, and the scanpath of the words up to this one."""
        rows, columns = self.attention_maps.shape[1:]
        scanpath = [self.peak_xy(index) for index in range(word_index + 1)]
        left, top, right, bottom = self.crop_box
        field_box = _box_around(scanpath[-1], *receptive_field)
        cell_box = _box_around(scanpath[-1], (right - left) / columns, (bottom - top) / rows)
        *color, alpha = (table[0] for table in self._lookup_tables)
        mask = Image.new("L", image.size, alpha)
        ImageDraw.Draw(mask).rectangle(_to_pixels(field_box, image), 0)
        rendered = Image.composite(Image.new("RGB", image.size, tuple(color)), image, mask)
        scale = max(1, min(4, 2000 // max(image.size)))  # supersampling: Pillow draws lines without antialiasing
        thickness = max(1.5, max(image.size) / 250) * scale
        # A wide dark line below each light one keeps it visible on any image.
        for line_color, width in (((0, 0, 0), 2.5 * thickness), (_HIGHLIGHT_COLOR, thickness)):
            lines = Image.new("L", (image.width * scale, image.height * scale))
            _draw_scanpath(lines, scanpath, field_box, cell_box, width, width + thickness)
            rendered.paste(line_color, mask=lines.resize(image.size, Image.Resampling.BOX))
        return rendered


def _draw_scanpath(
    lines: Image.Image,
    scanpath: Sequence[tuple[float, float]],
    field_box: Box,
    cell_box: Box,
    width: float,
    radius: float,
) -> None:
    draw = ImageDraw.Draw(lines)
    for box, width_ratio in ((field_box, 0.5), (cell_box, 1)):
        left, top, right, bottom = _to_pixels(box, lines)
        corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top), (right, top)]
        draw.line(corners, 255, max(1, round(width * width_ratio)), "curve")
    points = [(x * lines.width, y * lines.height) for x, y in scanpath]
    draw.line(points, 255, max(1, round(width)), "curve")
    for x, y in points:
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), 255)


def _to_pixels(box: Box, image: Image.Image) -> tuple[int, int, int, int]:
    width, height = image.size
    return round(box.left * width), round(box.top * height), round(box.right * width), round(box.bottom * height)


def _box_around(center: tuple[float, float], width: float, height: float) -> Box:
    return Box(center[0], center[1], center[0], center[1]).expand(width / 2, height / 2)


def render_panels(
    image: Image.Image,
    words: Sequence[str],
    renderer: AttentionRenderer,
    panel_width: int = DEFAULT_PANEL_WIDTH,
    columns: int = 6,
) -> Image.Image:
    """Render one sheet: a panel with the image, then one panel per word with its attention map and the word below it.

    Args:
        image: the full image.
        words: T words.
        renderer: holds the attention maps of the words.
        panel_width: width of each panel in pixels.
        columns: number of panels per row.
    """
    check_panel_width(panel_width)
    height = min(round(panel_width * image.height / image.width), _MAX_ASPECT_RATIO * panel_width)
    small = image.resize((panel_width, max(1, height)))
    panels = [small, *(renderer(small, index) for index in range(len(words)))]
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    width = columns * (panel_width + _GAP) + _GAP
    title = _TextLayout(words, width - 2 * _GAP)
    top = title.height + _GAP
    sheet = Image.new("RGB", (width, top + rows * (small.height + _LINE_HEIGHT + _GAP)), _BACKGROUND_COLOR)
    title.draw(sheet, (_GAP, _GAP))
    draw = ImageDraw.Draw(sheet)
    for index, (panel, label) in enumerate(zip(panels, ["", *words], strict=True)):
        x = _GAP + (index % columns) * (panel_width + _GAP)
        y = top + (index // columns) * (small.height + _LINE_HEIGHT + _GAP)
        sheet.paste(panel, (x, y))
        text, font = _truncate_to_width(label, _FONT_SIZE, panel_width)
        draw.text((x + panel_width / 2, y + small.height + _LINE_HEIGHT / 2), text, _TEXT_COLOR, font, anchor="mm")
    return sheet


def render_frames(image: Image.Image, words: Sequence[str], renderer: AttentionRenderer) -> Iterator[Image.Image]:
    """Yield one image per word at full size, with its map and the word as a label that does not cover the peak."""
    size = max(12, max(image.size) // 24)
    margin = size // 3
    for index, word in enumerate(words):
        frame = renderer(image, index)
        text, font = _truncate_to_width(word, size, image.width - 4 * margin)
        x, y = margin, max(0, image.height - 2 * size) if renderer.peak_xy(index)[1] < 0.75 else margin
        draw = ImageDraw.Draw(frame, "RGBA")
        label_box = (x, y, x + font.getlength(text) + 2 * margin, y + 1.6 * size)
        draw.rounded_rectangle(label_box, margin, (0, 0, 0, 190))
        draw.text((x + margin, y + 1.15 * size), text, _BACKGROUND_COLOR, font, anchor="ls")
        yield frame


def render_animation(image: Image.Image, words: Sequence[str], renderer: AttentionRenderer) -> Iterator[Image.Image]:
    """Yield the image, then one frame per word with its map; the caption below highlights the current word."""
    small = image.copy()
    small.thumbnail((MAX_ANIMATION_SIDE, MAX_ANIMATION_SIDE))
    caption = _TextLayout(words, small.width - 2 * _GAP)
    for word_index in (None, *range(len(words))):
        frame = Image.new("RGB", (small.width, small.height + caption.height + _GAP), _BACKGROUND_COLOR)
        frame.paste(small if word_index is None else renderer(small, word_index))
        caption.draw(frame, (_GAP, small.height + _GAP // 2), word_index)
        yield frame


class _PlacedWord(NamedTuple):
    text: str
    font: Font
    left: float
    baseline: float
    width: float


class _TextLayout:
    """Words wrapped into lines of at most ``width`` pixels, each in a font that contains its characters."""

    def __init__(self, words: Sequence[str], width: int) -> None:
        self._words: list[_PlacedWord] = []
        right_to_left = is_right_to_left(" ".join(words))
        space = _FONT_SIZE * 0.4
        offset, line = 0.0, 0
        for word in words:
            text, font = _truncate_to_width(word, _FONT_SIZE, width)
            length = font.getlength(text)
            if offset and offset + length > width:
                offset, line = 0.0, line + 1
            left = width - offset - length if right_to_left else offset
            self._words.append(_PlacedWord(text, font, left, line * _LINE_HEIGHT + 0.7 * _LINE_HEIGHT, length))
            offset += length + space
        self.height = (line + 1) * _LINE_HEIGHT

    def draw(self, image: Image.Image, top_left: tuple[int, int], highlighted: int | None = None) -> None:
        """Draw the words with their upper left corner at ``top_left``, one of them with a highlighted background."""
        draw = ImageDraw.Draw(image)
        for index, (text, font, left, baseline, width) in enumerate(self._words):
            x, y = top_left[0] + left, top_left[1] + baseline
            if index == highlighted:
                draw.rounded_rectangle((x - 3, y - 20, x + width + 3, y + 8), 4, _HIGHLIGHT_COLOR)
            draw.text((x, y), text, _TEXT_COLOR, font, anchor="ls")


def _truncate_to_width(text: str, size: int, width: float) -> tuple[str, Font]:
    """Return the text, truncated to ``width`` pixels where necessary, and a font for it."""
    font = find_font(text, size)
    kept = text
    while kept and font.getlength(text) > width:
        kept = kept[:-1]
        text = f"{kept}.."
    return text, font
