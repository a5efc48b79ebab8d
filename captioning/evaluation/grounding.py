"""Grounding of attention maps: does the map of a word that names an object lie on the boxes of the object?

For every word of a generated caption that names a category with boxes in the image, two values are computed: pointing
(the location with the highest weight lies in a box; the pointing game of Zhang et al. 2016) and the attention mass in
the boxes (Liu et al. 2017). Controls: the image center, the maps of the other words of the caption, uniform attention.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from captioning.caption import Caption
from captioning.captioner import Captioner
from captioning.datasets.boxes import boxes_by_category, crop_boxes, grid_coverage
from captioning.datasets.categories import named_categories
from captioning.datasets.record import Record
from captioning.preprocessing.image import Box, read_image_size
from captioning.utils.errors import CaptioningError

DEFAULT_SLACK = 0.03  # of the shorter image side; half a cell of a 16×16 grid
CONTROLS = ("center", "other_word", "uniform")

CategoryBoxes = Mapping[str, tuple[Box, ...]]


class WordGrounding(NamedTuple):
    """Values of one word, by source: ``map`` (of the word) or a control; NaN for ``other_word`` if there is none."""

    position: int  # in the caption
    category: str
    box_area: float  # of the largest box of the category, as a fraction of the image
    pointing: dict[str, float]
    mass: dict[str, float]


class ImageGrounding(NamedTuple):
    """Values of one image."""

    record: Record
    caption: Caption
    words: list[WordGrounding]
    named: set[str]  # categories that the caption names, of those that the dataset annotates
    present: set[str]  # categories with a box in the image


def measure_grounding(
    captioner: Captioner, records: Sequence[Record], categories: Iterable[str], slack: float = DEFAULT_SLACK
) -> list[ImageGrounding]:
    """Caption the images of records and compare the attention maps with the boxes.

    Args:
        captioner: the model with its generation settings and attention mode.
        records: annotated images.
        categories: categories that the dataset annotates. An image without a box of another category may contain it.
        slack: boxes are extended by this fraction of the shorter image side for pointing, since the center of a cell
            may lie beside a small object in it.
    """
    annotated = set(categories)
    captions = captioner.iter_captions(record.image_path for record in records)
    results = []
    for record, caption in zip(records, tqdm(captions, "captioning", len(records), unit="image"), strict=True):
        if isinstance(caption, CaptioningError):
            raise caption
        boxes = boxes_by_category(record.boxes or ())
        words = ground_words(caption, boxes, read_image_size(record.image_path), slack)
        named = annotated & set(named_categories(caption.words))
        results.append(ImageGrounding(record, caption, words, named, set(boxes)))
    return results


def ground_words(
    caption: Caption, boxes: CategoryBoxes, image_size: tuple[int, int], slack: float = DEFAULT_SLACK
) -> list[WordGrounding]:
    """Compare the maps of the words that name a category in ``boxes`` with its boxes.

    Args:
        caption: the caption with its attention maps.
        boxes: boxes of each category, in fractions of the image.
        image_size: width and height in pixels.
        slack: see :func:`measure_grounding`.
    """
    categories = named_categories(caption.words)
    grid_size = caption.attention_maps.shape[1:]
    margins = [slack * min(image_size) / side for side in image_size]
    words = []
    for position, category in enumerate(categories):
        if category not in boxes:
            continue
        hits = _hits(boxes[category], margins, caption.crop_box, grid_size)
        coverage = grid_coverage(crop_boxes(boxes[category], caption.crop_box), grid_size)
        attention_map = caption.attention_maps[position]
        others = [other for other, name in zip(caption.attention_maps, categories, strict=True) if name != category]
        pointing = {
            "map": _pointing(attention_map, hits),
            "center": float(any(box.expand(*margins).contains(0.5, 0.5) for box in boxes[category])),
            "other_word": _mean([_pointing(other, hits) for other in others]),
            "uniform": float(hits.mean()),
        }
        mass = {
            "map": float((attention_map * coverage).sum()),
            "center": float(any(box.contains(0.5, 0.5) for box in boxes[category])),
            "other_word": _mean([float((other * coverage).sum()) for other in others]),
            "uniform": float(coverage.mean()),
        }
        box_area = max(box.area for box in boxes[category])
        words.append(WordGrounding(position, category, box_area, pointing, mass))
    return words


def _hits(boxes: Iterable[Box], margins: Sequence[float], crop_box: Box, grid_size: Sequence[int]) -> np.ndarray:
    """Whether the center of each grid cell lies in an extended box, (rows, columns)."""
    rows, columns = grid_size
    y = crop_box.top + (np.arange(rows)[:, None] + 0.5) / rows * (crop_box.bottom - crop_box.top)
    x = crop_box.left + (np.arange(columns) + 0.5) / columns * (crop_box.right - crop_box.left)
    hits = np.zeros((rows, columns), dtype=bool)
    for left, top, right, bottom in (box.expand(*margins) for box in boxes):
        hits |= (left <= x) & (x <= right) & (top <= y) & (y <= bottom)
    return hits


def _pointing(attention_map: np.ndarray, hits: np.ndarray) -> float:
    """1 if the location with the highest weight is a hit, else 0; the mean over locations with equal weight."""
    return float(hits[attention_map == attention_map.max()].mean())


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
