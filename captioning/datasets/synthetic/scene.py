"""Synthetic scenes of one to three geometric objects, sampled from a seed and rendered with Pillow."""

import dataclasses
import random
from typing import Any

from PIL import Image, ImageDraw

from captioning.preprocessing.box import Box

COLORS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 100, 230),
    "yellow": (250, 200, 30),
    "purple": (150, 60, 190),
    "black": (30, 30, 30),
}
# Polygon of each shape on the square from (-1, -1) to (1, 1); the circle has none.
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
# Range of the half width in fractions of the image. The gap makes "small" and "large" unambiguous.
SIZES = {"small": (0.095, 0.105), "large": (0.145, 0.155)}

# Objects occupy cells of a 3×3 board. Their offset from the cell center is small, so rows and columns stay distinct.
_BOARD_SIZE = 3
_JITTER = 0.01
_OBJECT_COUNT_WEIGHTS = {1: 2, 2: 2, 3: 1}


@dataclasses.dataclass(frozen=True)
class SceneObject:
    """One object of a scene, with its center (x, y) and half width in fractions of the image."""

    shape: str
    color: str
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
    def board_cell(self) -> tuple[int, int]:
        """Row and column on the 3×3 board."""
        return int(self.y * _BOARD_SIZE), int(self.x * _BOARD_SIZE)


@dataclasses.dataclass(frozen=True)
class Scene:
    """Objects on a uniform background. Each pair of shape and color occurs once, so noun phrases are unambiguous."""

    objects: tuple[SceneObject, ...]
    background: tuple[int, int, int]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Scene":
        return cls(tuple(SceneObject(**item) for item in values["objects"]), tuple(values["background"]))

    @property
    def signature(self) -> str:
        """Kinds and board cells of all objects, independent of jitter, exact size and background."""
        return " ".join(sorted(f"{item.size}-{item.color}-{item.shape}@{item.board_cell}" for item in self.objects))


def sample_scene(rng: random.Random) -> Scene:
    """Sample a random scene."""
    num_objects = rng.choices(list(_OBJECT_COUNT_WEIGHTS), list(_OBJECT_COUNT_WEIGHTS.values()))[0]
    kinds = rng.sample([(shape, color) for shape in SHAPES for color in COLORS], num_objects)
    cells = rng.sample([(row, column) for row in range(_BOARD_SIZE) for column in range(_BOARD_SIZE)], num_objects)
    objects = []
    for (shape, color), (row, column) in zip(kinds, cells, strict=True):
        size = rng.choice(list(SIZES))
        x, y = ((index + 0.5) / _BOARD_SIZE + rng.uniform(-_JITTER, _JITTER) for index in (column, row))
        half_width = rng.uniform(*SIZES[size])
        objects.append(SceneObject(shape, color, size, round(x, 4), round(y, 4), round(half_width, 4)))
    red, green, blue = (rng.randint(230, 250) for _ in range(3))
    return Scene(tuple(objects), (red, green, blue))


def render(scene: Scene, size: int = 160) -> Image.Image:
    """Render a scene as a square image of ``size`` pixels."""
    scale = 2 * size  # 2× supersampling for antialiasing
    image = Image.new("RGB", (scale, scale), scene.background)
    canvas = ImageDraw.Draw(image)
    for item in scene.objects:
        corners = [
            ((item.x + x * item.half_width) * scale, (item.y + y * item.half_width) * scale)
            for x, y in SHAPES[item.shape]
        ]
        if corners:
            canvas.polygon(corners, fill=COLORS[item.color])
        else:
            canvas.ellipse([edge * scale for edge in item.box], fill=COLORS[item.color])
    return image.resize((size, size), Image.Resampling.BOX)
