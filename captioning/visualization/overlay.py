"""Attention maps rendered on top of an image with Pillow; no display is required."""

import math
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from captioning.preprocessing.image import Box
from captioning.visualization.colormaps import DARK_LUMINANCE, DEFAULT_OPACITY, colormap_stops
from captioning.visualization.concentration import half_attention_outline
from captioning.visualization.smoothing import smooth_maps

HIGHLIGHT_COLOR = (255, 213, 74)
_BORDER_COLOR = (0, 0, 0)
_SUPERSAMPLED_SIDE = 2000  # pixels; lines on smaller images are supersampled, since Pillow draws without antialiasing


class _Canvas(NamedTuple):
    """Rows ``top`` to ``bottom`` of an image of ``size``. All drawing uses the coordinates of the whole image."""

    size: tuple[int, int]
    top: int
    bottom: int

    def to_pixels(self, box: Box) -> tuple[int, int, int, int]:
        width, height = self.size
        return round(box.left * width), round(box.top * height), round(box.right * width), round(box.bottom * height)


class AttentionRenderer:
    """Renders the attention map of a word on top of the image.

    Soft attention: a color gradient, and the outline of the smallest region that holds half of the attention. Each map
    is smoothed and scaled by its own maximum. Hard attention: the attended cell, its receptive field, and the path of
    the words up to this one.

    Args:
        attention_maps: (T, rows, columns), one per word.
        crop_box: the part of the image that the maps cover. The model does not receive the rest of the image, which is
            rendered as zero attention.
        receptive_field: for hard attention, width and height of the receptive field of one location, in fractions of
            the image. None for soft attention.
        colormap: a key of :data:`captioning.visualization.colormaps.COLORMAPS`.
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
        if receptive_field is not None:
            colormap = "spotlight"  # a single location has no gradient: the rest is darkened
        self._lookup_tables = [_lookup_tables(colormap, opacity, is_dark) for is_dark in (False, True)]
        self.colormap = colormap
        self.attention_maps = attention_maps if receptive_field is not None else smooth_maps(attention_maps)
        self.crop_box = crop_box
        self.receptive_field = receptive_field

    def __call__(self, image: Image.Image, word_index: int) -> Image.Image:
        """Render the map of a word on a copy of the image, which may have any size."""
        return self.render_rows(image, word_index, 0, image.height)

    def render_rows(self, image: Image.Image, word_index: int, top: int, bottom: int) -> Image.Image:
        """Render the rows ``top`` to ``bottom`` of the image. The memory does not depend on the size of the image."""
        canvas = _Canvas(image.size, top, bottom)
        rows = image.crop((0, top, image.width, bottom))
        tables = self._lookup_tables[_is_dark(image)]
        if self.receptive_field is None:
            return self._render_soft(rows, canvas, self.attention_maps[word_index], tables)
        return self._render_hard(rows, canvas, word_index, self.receptive_field, tables)

    def peak_xy(self, word_index: int) -> tuple[float, float]:
        """Center of the cell with the highest attention weight, in fractions of the image."""
        rows, columns = self.attention_maps.shape[1:]
        row, column = divmod(int(self.attention_maps[word_index].argmax()), columns)
        x, y = self._to_image(np.array([(column + 0.5) / columns, (row + 0.5) / rows])).tolist()
        return x, y

    def _to_image(self, points: np.ndarray) -> np.ndarray:
        """Convert points (…, 2) from fractions of the map to fractions of the image."""
        left, top, right, bottom = self.crop_box
        return np.array([left, top]) + points * (right - left, bottom - top)

    def _render_soft(
        self, rows: Image.Image, canvas: _Canvas, attention_map: np.ndarray, tables: list[list[int]]
    ) -> Image.Image:
        levels = self._upsample(attention_map, canvas)
        *channels, alpha = (levels.point(table) for table in tables)
        rendered = Image.composite(Image.merge("RGB", channels), rows, alpha)
        outline = self._to_image(half_attention_outline(attention_map)) * canvas.size
        _draw_lines(rendered, canvas, [segment for segment in outline if _crosses(segment, canvas)], [], 0.8)
        return rendered

    def _upsample(self, attention_map: np.ndarray, canvas: _Canvas) -> Image.Image:
        """Return the attention on the canvas, 255 at the maximum of the map and 0 outside the crop box."""
        levels = Image.new("L", (canvas.size[0], canvas.bottom - canvas.top))
        grid = Image.fromarray((255 * attention_map / max(attention_map.max(), 1e-9)).round().astype(np.uint8))
        left, top, right, bottom = canvas.to_pixels(self.crop_box)
        visible = (max(left, 0), max(top, canvas.top), min(right, canvas.size[0]), min(bottom, canvas.bottom))
        width, height = visible[2] - visible[0], visible[3] - visible[1]
        if width <= 0 or height <= 0:
            return levels
        x_scale, y_scale = grid.width / (right - left), grid.height / (bottom - top)
        grid_box = (
            (visible[0] - left) * x_scale,
            (visible[1] - top) * y_scale,
            (visible[2] - left) * x_scale,
            (visible[3] - top) * y_scale,
        )
        resized = grid.resize((width, height), Image.Resampling.BICUBIC, box=grid_box)
        levels.paste(resized, (visible[0], visible[1] - canvas.top))
        return levels

    def _render_hard(
        self,
        rows: Image.Image,
        canvas: _Canvas,
        word_index: int,
        receptive_field: tuple[float, float],
        tables: list[list[int]],
    ) -> Image.Image:
        grid_rows, grid_columns = self.attention_maps.shape[1:]
        scanpath = np.array([self.peak_xy(index) for index in range(word_index + 1)])
        left, top, right, bottom = self.crop_box
        field_box = _box_around(scanpath[-1], *receptive_field)
        cell_box = _box_around(scanpath[-1], (right - left) / grid_columns, (bottom - top) / grid_rows)
        *color, alpha = (table[0] for table in tables)
        mask = Image.new("L", rows.size, alpha)
        field_left, field_top, field_right, field_bottom = canvas.to_pixels(field_box)
        visible_rows = (max(field_top - canvas.top, 0), min(field_bottom - canvas.top, rows.height))
        if visible_rows[0] < visible_rows[1]:
            mask.paste(0, (max(field_left, 0), visible_rows[0], min(field_right, rows.width), visible_rows[1]))
        rendered = Image.composite(Image.new("RGB", rows.size, tuple(color)), rows, mask)
        path = scanpath * canvas.size
        _draw_lines(rendered, canvas, [_corners(field_box, canvas)], [], 0.5)
        _draw_lines(rendered, canvas, [_corners(cell_box, canvas), path], list(path), 1)
        return rendered


def _lookup_tables(colormap: str, opacity: float, is_dark: bool) -> list[list[int]]:
    """Return red, green, blue and alpha for each of 256 levels of attention."""
    stops = np.array(colormap_stops(colormap, opacity, is_dark)) * (1, 1, 1, 255)  # (stops, 4)
    levels = np.linspace(0, len(stops) - 1, 256)
    return [np.interp(levels, range(len(stops)), channel).round().astype(int).tolist() for channel in stops.T]


def _is_dark(image: Image.Image) -> bool:
    samples = image.resize((32, 32), Image.Resampling.NEAREST).convert("L")
    return float(np.asarray(samples).mean()) < DARK_LUMINANCE


def _crosses(segment: np.ndarray, canvas: _Canvas) -> bool:
    margin = max(canvas.size) / 50  # more than the width of a line
    return segment[:, 1].max() > canvas.top - margin and segment[:, 1].min() < canvas.bottom + margin


def _corners(box: Box, canvas: _Canvas) -> np.ndarray:
    left, top, right, bottom = canvas.to_pixels(box)
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom), (left, top), (right, top)])


def _box_around(center: np.ndarray, width: float, height: float) -> Box:
    return Box(center[0], center[1], center[0], center[1]).expand(width / 2, height / 2)


def _draw_lines(
    image: Image.Image, canvas: _Canvas, lines: list[np.ndarray], marks: list[np.ndarray], width_ratio: float
) -> None:
    """Draw lines (N, 2) and round marks in the highlight color, with a dark border so that any image shows them."""
    if not lines:
        return
    scale = max(1, min(4, _SUPERSAMPLED_SIDE // max(canvas.size)))
    thickness = max(1.5, math.sqrt(canvas.size[0] * canvas.size[1]) / 220) * scale
    for color, width in ((_BORDER_COLOR, 2.5 * thickness), (HIGHLIGHT_COLOR, thickness)):
        mask = Image.new("L", (image.width * scale, image.height * scale))
        draw = ImageDraw.Draw(mask)
        for line in lines:
            points = [((x * scale), ((y - canvas.top) * scale)) for x, y in line]
            draw.line(points, 255, max(1, round(width * width_ratio)), "curve")
        for x, y in marks:
            draw.circle((x * scale, (y - canvas.top) * scale), width + thickness, 255)
        image.paste(color, mask=mask.reduce(scale) if scale > 1 else mask)
