"""Maps → pictures, with Pillow alone: no display is needed."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from captioning.errors import CaptioningError
from captioning.fonts import Font, font_for, right_to_left
from captioning.images import Box

# From low to high: red, green, blue, and how much of the photo the colour hides at an opacity of 1.
COLOURS: dict[str, tuple[tuple[float, float, float, float], ...]] = {
    "light": ((0, 0, 0, 1), (0, 0, 0, 0)),  # the photo lit where the map is high, and dimmed elsewhere
    "heat": ((0, 0, 0, 1), (150, 0, 20, 1), (230, 60, 0, 1), (255, 165, 0, 1), (255, 245, 160, 1)),
    "viridis": (
        *((68, 1, 84, 1), (71, 44, 122, 1), (59, 81, 139, 1), (44, 113, 142, 1), (33, 144, 141, 1)),
        *((39, 173, 129, 1), (92, 200, 99, 1), (170, 220, 50, 1), (253, 231, 37, 1)),
    ),
}
OPACITY = 0.75
PANEL_WIDTH = 200
ANIMATION_SIDE = 480  # the longest of its photo

_GAP = 12
_TALLEST = 8  # times its width a panel may be; a strip of a photo would take gigabytes, and is squeezed
_FONT_SIZE = 18
_LINE_HEIGHT = 30
_INK, _PAPER, _MARKED = (20, 20, 20), (255, 255, 255), (255, 213, 74)


def colour_table(colours: str, opacity: float) -> list[list[float]]:
    """[red, green, blue, opacity] from low to high, as viewer.js takes them."""
    if colours not in COLOURS:
        raise CaptioningError(f"unknown colours '{colours}'; choose one of {', '.join(COLOURS)}")
    if not 0 <= opacity <= 1:
        raise CaptioningError(f"opacity {opacity}: take 0 (nothing of the map is seen) to 1 (nothing of the photo)")
    return [[*colour, round(hides * opacity, 4)] for *colour, hides in COLOURS[colours]]


def check_panel_width(panel_width: int) -> None:
    if not 16 <= panel_width <= 4000:
        raise CaptioningError(f"panel width {panel_width}: take 16 to 4000 pixels")


class Painter:
    """Paints on a photo where a model looked when it said a word.

    Args:
        maps: (T, rows, columns), one per word.
        window: the part of the photo that the maps lie on; the rest of it was not seen, and is shown as a map of zero.
        field: if each map is one place only, how much of the photo that place sees, as shares of width and height.
        colours: a name of :data:`COLOURS`.
        opacity: how much the colours hide of the photo, 0 to 1.
    """

    def __init__(
        self,
        maps: np.ndarray,
        window: Box,
        field: tuple[float, float] | None = None,
        colours: str = "light",
        opacity: float = OPACITY,
    ) -> None:
        table = np.array(colour_table(colours, opacity)) * (1, 1, 1, 255)  # (colours, 4)
        steps = np.linspace(0, len(table) - 1, 256)
        self._tables = [
            np.interp(steps, range(len(table)), channel).round().astype(int).tolist() for channel in table.T
        ]
        self.maps = maps
        self.window = window
        self.field = field

    def __call__(self, photo: Image.Image, word: int) -> Image.Image:
        """The photo, at whatever size, with the map of a word."""
        return self._soft(photo, self.maps[word]) if self.field is None else self._hard(photo, word, self.field)

    def peak(self, word: int) -> tuple[float, float]:
        """The middle of the cell that a word's map is highest in, in shares of the photo."""
        rows, columns = self.maps.shape[1:]
        row, column = divmod(int(self.maps[word].argmax()), columns)
        left, top, right, bottom = self.window
        return left + (column + 0.5) / columns * (right - left), top + (row + 0.5) / rows * (bottom - top)

    def _soft(self, photo: Image.Image, weights: np.ndarray) -> Image.Image:
        left, top, right, bottom = _pixels(self.window, photo)
        small = Image.fromarray((255 * weights / max(weights.max(), 1e-9)).round().astype(np.uint8))
        levels = Image.new("L", photo.size)
        levels.paste(small.resize((right - left, bottom - top), Image.Resampling.BICUBIC), (left, top))
        *colours, hides = (levels.point(table) for table in self._tables)
        return Image.composite(Image.merge("RGB", colours), photo, hides)

    def _hard(self, photo: Image.Image, word: int, field: tuple[float, float]) -> Image.Image:
        """What a single place is: its cell, the field that it sees, and the path that led there from word to word."""
        rows, columns = self.maps.shape[1:]
        path = [self.peak(earlier) for earlier in range(word + 1)]
        left, top, right, bottom = self.window
        seen = _around(path[-1], *field)
        cell = _around(path[-1], (right - left) / columns, (bottom - top) / rows)
        *colour, hides = (table[0] for table in self._tables)
        shade = Image.new("L", photo.size, hides)
        ImageDraw.Draw(shade).rectangle(_pixels(seen, photo), 0)
        painted = Image.composite(Image.new("RGB", photo.size, tuple(colour)), photo, shade)
        finer = max(1, min(4, 2000 // max(photo.size)))  # Pillow's lines are jagged: small ones are drawn large
        thickness = max(1.5, max(photo.size) / 250) * finer
        for ink, width in (((0, 0, 0), 2.5 * thickness), (_MARKED, thickness)):  # the one below shows on any photo
            lines = Image.new("L", (photo.width * finer, photo.height * finer))
            _draw_path(lines, path, seen, cell, width, width + thickness)
            painted.paste(ink, mask=lines.resize(photo.size, Image.Resampling.BOX))
        return painted


def _draw_path(
    lines: Image.Image, path: Sequence[tuple[float, float]], seen: Box, cell: Box, width: float, radius: float
) -> None:
    pen = ImageDraw.Draw(lines)
    for box, share in ((seen, 0.5), (cell, 1)):
        left, top, right, bottom = _pixels(box, lines)
        corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top), (right, top)]
        pen.line(corners, 255, max(1, round(width * share)), "curve")
    points = [(x * lines.width, y * lines.height) for x, y in path]
    pen.line(points, 255, max(1, round(width)), "curve")
    for x, y in points:
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), 255)


def _pixels(box: Box, image: Image.Image) -> tuple[int, int, int, int]:
    width, height = image.size
    return round(box.left * width), round(box.top * height), round(box.right * width), round(box.bottom * height)


def _around(middle: tuple[float, float], width: float, height: float) -> Box:
    return Box(middle[0], middle[1], middle[0], middle[1]).grown(width / 2, height / 2)


def panels(
    photo: Image.Image, words: Sequence[str], painter: Painter, panel_width: int = PANEL_WIDTH, columns: int = 6
) -> Image.Image:
    """One picture: the photo, then the photo once per word with that word's map and the word below it.

    Args:
        photo: the whole photo.
        words: T words.
        painter: has their maps.
        panel_width: of each panel, in pixels.
        columns: panels in a row.
    """
    check_panel_width(panel_width)
    height = min(round(panel_width * photo.height / photo.width), _TALLEST * panel_width)
    small = photo.resize((panel_width, max(1, height)))
    pictures = [small, *(painter(small, word) for word in range(len(words)))]
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    width = columns * (panel_width + _GAP) + _GAP
    title = _Sentence(words, width - 2 * _GAP)
    top = title.height + _GAP
    sheet = Image.new("RGB", (width, top + rows * (small.height + _LINE_HEIGHT + _GAP)), _PAPER)
    title.write(sheet, (_GAP, _GAP))
    pen = ImageDraw.Draw(sheet)
    for number, (picture, label) in enumerate(zip(pictures, ["", *words], strict=True)):
        x = _GAP + (number % columns) * (panel_width + _GAP)
        y = top + (number // columns) * (small.height + _LINE_HEIGHT + _GAP)
        sheet.paste(picture, (x, y))
        text, font = _shortened(label, _FONT_SIZE, panel_width)
        pen.text((x + panel_width / 2, y + small.height + _LINE_HEIGHT / 2), text, _INK, font, anchor="mm")
    return sheet


def labelled(photo: Image.Image, words: Sequence[str], painter: Painter) -> Iterator[Image.Image]:
    """For each word the photo at its own size with the map, and on it the word, away from where the map is highest."""
    size = max(12, max(photo.size) // 24)
    margin = size // 3
    for number, word in enumerate(words):
        picture = painter(photo, number)
        text, font = _shortened(word, size, photo.width - 4 * margin)
        x, y = margin, max(0, photo.height - 2 * size) if painter.peak(number)[1] < 0.75 else margin
        pen = ImageDraw.Draw(picture, "RGBA")
        plate = (x, y, x + font.getlength(text) + 2 * margin, y + 1.6 * size)
        pen.rounded_rectangle(plate, margin, (0, 0, 0, 190))
        pen.text((x + margin, y + 1.15 * size), text, _PAPER, font, anchor="ls")
        yield picture


def animation(photo: Image.Image, words: Sequence[str], painter: Painter) -> Iterator[Image.Image]:
    """The photo, then for each word its map; below it the sentence, with the word marked."""
    small = photo.copy()
    small.thumbnail((ANIMATION_SIDE, ANIMATION_SIDE))
    sentence = _Sentence(words, small.width - 2 * _GAP)
    for marked in (None, *range(len(words))):
        frame = Image.new("RGB", (small.width, small.height + sentence.height + _GAP), _PAPER)
        frame.paste(small if marked is None else painter(small, marked))
        sentence.write(frame, (_GAP, small.height + _GAP // 2), marked)
        yield frame


class _Word(NamedTuple):
    text: str
    font: Font
    left: float
    baseline: float
    width: float


class _Sentence:
    """Words laid out in lines, each in a font that has its letters."""

    def __init__(self, words: Sequence[str], width: int) -> None:
        self._words: list[_Word] = []
        backwards = right_to_left(" ".join(words))
        space = _FONT_SIZE * 0.4
        at, line = 0.0, 0
        for word in words:
            text, font = _shortened(word, _FONT_SIZE, width)
            length = font.getlength(text)
            if at and at + length > width:
                at, line = 0.0, line + 1
            left = width - at - length if backwards else at
            self._words.append(_Word(text, font, left, line * _LINE_HEIGHT + 0.7 * _LINE_HEIGHT, length))
            at += length + space
        self.height = (line + 1) * _LINE_HEIGHT

    def write(self, image: Image.Image, corner: tuple[int, int], marked: int | None = None) -> None:
        """Write it with its upper left corner there, one of the words on a plate."""
        pen = ImageDraw.Draw(image)
        for number, (text, font, left, baseline, width) in enumerate(self._words):
            x, y = corner[0] + left, corner[1] + baseline
            if number == marked:
                pen.rounded_rectangle((x - 3, y - 20, x + width + 3, y + 8), 4, _MARKED)
            pen.text((x, y), text, _INK, font, anchor="ls")


def _shortened(text: str, size: int, width: float) -> tuple[str, Font]:
    """The text, cut if it must be to fit into the width, and a font for it."""
    font = font_for(text, size)
    kept = text
    while kept and font.getlength(text) > width:
        kept = kept[:-1]
        text = f"{kept}.."
    return text, font
