"""Scenes of one to three objects, drawn with Pillow from a seed: pictures whose truth is known."""

import dataclasses
import random
from typing import Any

from PIL import Image, ImageDraw

from captioning.images import Box

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 100, 230),
    "yellow": (250, 200, 30),
    "purple": (150, 60, 190),
    "black": (30, 30, 30),
}
# Corners of each shape on a square from (-1, -1) to (1, 1); a circle has none.
SHAPES: dict[str, tuple[tuple[float, float], ...]] = {
    "circle": (),
    "square": ((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)),
    "triangle": ((0, -1), (1, 0.85), (-1, 0.85)),
    "cross": tuple(
        (x, y)
        for x, y in (
            (-0.35, -1), (0.35, -1), (0.35, -0.35), (1, -0.35), (1, 0.35), (0.35, 0.35),
            (0.35, 1), (-0.35, 1), (-0.35, 0.35), (-1, 0.35), (-1, -0.35), (-0.35, -0.35),
        )
    ),
}  # fmt: skip
# Half the width in fractions of the picture. The gap between the two keeps "small" and "large" apart.
SIZES = {"small": (0.095, 0.105), "large": (0.145, 0.155)}

# Objects stand in cells of a 3×3 board, off their cell's middle by at most this: rows and columns stay apart.
_BOARD = 3
_WANDER = 0.01
_COUNT_ODDS = {1: 2, 2: 2, 3: 1}


@dataclasses.dataclass(frozen=True)
class Thing:
    """One object of a scene: its centre (x, y) and half width in fractions of the picture."""

    shape: str
    colour: str
    size: str
    x: float
    y: float
    half_width: float

    @property
    def box(self) -> Box:
        return Box(
            self.x - self.half_width, self.y - self.half_width, self.x + self.half_width, self.y + self.half_width
        )

    @property
    def cell(self) -> tuple[int, int]:
        """Row and column on the 3×3 board."""
        return int(self.y * _BOARD), int(self.x * _BOARD)


@dataclasses.dataclass(frozen=True)
class Scene:
    """Objects on a plain ground; no two have both shape and colour in common, so a phrase means one of them."""

    things: tuple[Thing, ...]
    ground: tuple[int, int, int]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, scene: dict[str, Any]) -> "Scene":
        return cls(tuple(Thing(**thing) for thing in scene["things"]), tuple(scene["ground"]))

    @property
    def signature(self) -> str:
        """What is in the scene and where, whatever the small differences of drawing."""
        return " ".join(sorted(f"{thing.size}-{thing.colour}-{thing.shape}@{thing.cell}" for thing in self.things))


def compose(random_source: random.Random) -> Scene:
    """A new scene."""
    count = random_source.choices(list(_COUNT_ODDS), list(_COUNT_ODDS.values()))[0]
    kinds = random_source.sample([(shape, colour) for shape in SHAPES for colour in COLOURS], count)
    cells = random_source.sample([(row, column) for row in range(_BOARD) for column in range(_BOARD)], count)
    things = []
    for (shape, colour), (row, column) in zip(kinds, cells, strict=True):
        size = random_source.choice(list(SIZES))
        x, y = ((place + 0.5) / _BOARD + random_source.uniform(-_WANDER, _WANDER) for place in (column, row))
        half_width = random_source.uniform(*SIZES[size])
        things.append(Thing(shape, colour, size, round(x, 4), round(y, 4), round(half_width, 4)))
    red, green, blue = (random_source.randint(230, 250) for _ in range(3))
    return Scene(tuple(things), (red, green, blue))


def draw(scene: Scene, side: int = 160) -> Image.Image:
    """The picture of a scene, ``side`` pixels square."""
    scale = 2 * side  # drawn at twice the size and shrunk, which smooths the edges
    image = Image.new("RGB", (scale, scale), scene.ground)
    canvas = ImageDraw.Draw(image)
    for thing in scene.things:
        corners = [
            ((thing.x + x * thing.half_width) * scale, (thing.y + y * thing.half_width) * scale)
            for x, y in SHAPES[thing.shape]
        ]
        if corners:
            canvas.polygon(corners, fill=COLOURS[thing.colour])
        else:
            canvas.ellipse([edge * scale for edge in thing.box], fill=COLOURS[thing.colour])
    return image.resize((side, side), Image.Resampling.BOX)
