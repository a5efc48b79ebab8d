"""Bounding boxes: grouping by category, cropping to a view of the image, and coverage of the grid of locations."""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from captioning.datasets.categories import label_category
from captioning.datasets.record import LabeledBox, Record
from captioning.preprocessing.box import Box


def boxes_by_category(boxes: Iterable[LabeledBox]) -> dict[str, tuple[Box, ...]]:
    """Group boxes by the category of their label (see :mod:`captioning.datasets.categories`)."""
    groups: dict[str, tuple[Box, ...]] = {}
    for label, box in boxes:
        category = label_category(label)
        if category:
            groups[category] = (*groups.get(category, ()), box)
    return groups


def hold_out_boxes(records: Sequence[Record], num_images: int) -> list[Record]:
    """Move training images with boxes to the split ``test``, for measurement only.

    The images that come first by the SHA-256 of their file name are chosen, on every machine the same. Training then
    uses neither their boxes nor their captions.

    Args:
        records: records of a dataset.
        num_images: number of images; all, if fewer have boxes.
    """
    candidates = [record.image_path.name for record in records if record.split == "train" and record.boxes]
    ordered = sorted(candidates, key=lambda name: hashlib.sha256(name.encode()).digest())
    held_out = set(ordered[:num_images])
    return [
        dataclasses.replace(record, split="test")
        if record.split == "train" and record.boxes and record.image_path.name in held_out
        else record
        for record in records
    ]


def crop_boxes(boxes: Iterable[Box], region: Box, hflip: bool = False, min_visible: float = 0.0) -> tuple[Box, ...]:
    """Convert boxes of an image to boxes of a region of it, in fractions of the region and clipped to it.

    Args:
        boxes: in fractions of the image.
        region: the region, which may extend beyond the image.
        hflip: whether the region is flipped horizontally.
        min_visible: boxes of which at most this fraction of the area lies in the region are dropped.
    """
    width, height = region.right - region.left, region.bottom - region.top
    cropped = []
    for box in boxes:
        left, right = ((x - region.left) / width for x in (box.left, box.right))
        top, bottom = ((y - region.top) / height for y in (box.top, box.bottom))
        if hflip:
            left, right = 1 - right, 1 - left
        clipped = Box(max(left, 0), max(top, 0), min(right, 1), min(bottom, 1))
        is_visible = clipped.left < clipped.right and clipped.top < clipped.bottom
        if is_visible and clipped.area > min_visible * (right - left) * (bottom - top):
            cropped.append(clipped)
    return tuple(cropped)


@functools.lru_cache(maxsize=50_000)  # the same images return every epoch
def grid_coverage(boxes: tuple[Box, ...], grid_size: tuple[int, int]) -> np.ndarray:
    """Fraction of the area of each grid cell that the union of boxes covers, (rows, columns) in float32; read-only."""
    row_edges, row_overlap = _segment_overlap([(box.top, box.bottom) for box in boxes], grid_size[0])
    column_edges, column_overlap = _segment_overlap([(box.left, box.right) for box in boxes], grid_size[1])
    # The edges of all boxes and cells divide the image into rectangles that a box covers entirely or not at all.
    is_covered = np.zeros((len(row_edges) - 1, len(column_edges) - 1))
    for box in boxes:
        top, bottom = np.searchsorted(row_edges, (box.top, box.bottom))
        left, right = np.searchsorted(column_edges, (box.left, box.right))
        is_covered[top:bottom, left:right] = 1
    coverage = (row_overlap @ is_covered @ column_overlap.T).astype(np.float32)
    coverage.flags.writeable = False
    return coverage


def _segment_overlap(intervals: Sequence[tuple[float, float]], num_cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide [0, 1] at the edges of ``num_cells`` equal cells and of the given intervals.

    Returns the E sorted edges, and the fraction of each cell that lies in each segment, (num_cells, E - 1).
    """
    cell_edges = np.linspace(0, 1, num_cells + 1)
    edges = np.unique(np.concatenate([cell_edges, np.asarray(intervals, dtype=float).ravel()]))  # (E,)
    start, end = np.maximum(edges[:-1], cell_edges[:-1, None]), np.minimum(edges[1:], cell_edges[1:, None])
    return edges, (end - start).clip(0) * num_cells
