"""Rectangles in relative coordinates. This module does not import torch, so that datasets are read without it."""

from typing import NamedTuple


class Box(NamedTuple):
    """A rectangle in fractions of the image width and height; (0, 0, 1, 1) is the whole image."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def area(self) -> float:
        return (self.right - self.left) * (self.bottom - self.top)

    def contains(self, x: float, y: float) -> bool:
        return self.left <= x <= self.right and self.top <= y <= self.bottom

    def expand(self, dx: float, dy: float) -> "Box":
        """Move the left and right edges outward by ``dx``, the top and bottom edges by ``dy``."""
        return Box(self.left - dx, self.top - dy, self.right + dx, self.bottom + dy)
