import hashlib
import random
from pathlib import Path

import numpy as np
import pytest

from captioning.datasets.boxes import boxes_by_category, crop_boxes, grid_coverage, hold_out_boxes
from captioning.datasets.record import LabeledBox, Record
from captioning.preprocessing.image import Box

WHOLE_IMAGE = Box(0, 0, 1, 1)


def test_group_by_category() -> None:
    boxes = [LabeledBox(label, Box(0, 0, 0.1 * n, 1)) for n, label in enumerate(["aeroplane", "dog", "A plane"], 1)]
    assert boxes_by_category(boxes) == {"airplane": (boxes[0].box, boxes[2].box), "dog": (boxes[1].box,)}


def test_held_out_images_are_the_first_by_hash() -> None:
    boxes = (LabeledBox("dog", WHOLE_IMAGE),)
    records = [Record(Path(f"a/{n}.jpg"), ("A dog",), "train", {}, boxes if n % 2 else None) for n in range(20)]
    records.append(Record(Path("a/99.jpg"), ("A dog",), "val", {}, boxes))
    result = hold_out_boxes(records, 3)
    held_out = [record.image_path.name for record in result if record.split == "test"]
    annotated = [f"{n}.jpg" for n in range(1, 20, 2)]
    assert set(held_out) == set(sorted(annotated, key=lambda name: hashlib.sha256(name.encode()).digest())[:3])
    assert [record.image_path for record in result] == [record.image_path for record in records]
    shuffled = hold_out_boxes(random.sample(records, len(records)), 3)
    assert {record.image_path.name for record in shuffled if record.split == "test"} == set(held_out)
    assert sum(record.split == "test" for record in hold_out_boxes(records, 100)) == 10
    assert hold_out_boxes(records, 0) == records


def test_crop_and_flip() -> None:
    box = Box(0.5, 0.25, 0.75, 1)
    assert crop_boxes([box], WHOLE_IMAGE) == (box,)
    assert crop_boxes([box], WHOLE_IMAGE, hflip=True) == (Box(0.25, 0.25, 0.5, 1),)
    assert crop_boxes([box], Box(0.5, 0, 1, 0.5)) == (Box(0, 0.5, 0.5, 1),)
    assert crop_boxes([box], Box(0.5, 0, 1, 0.5), hflip=True) == (Box(0.5, 0.5, 1, 1),)
    assert crop_boxes([box], Box(0, 0, 0.5, 1)) == ()
    assert crop_boxes([Box(0.5, 0.5, 0.5, 1)], WHOLE_IMAGE) == ()  # no area
    assert crop_boxes([box], Box(-0.5, 0, 1.5, 1)) == (Box(0.5, 0.25, 0.625, 1),)  # a padded image


@pytest.mark.parametrize(("min_visible", "is_kept"), [(0.3, True), (0.4, False)])
def test_boxes_that_a_crop_cuts_off(min_visible: float, is_kept: bool) -> None:
    assert bool(crop_boxes([Box(0, 0, 0.75, 1)], Box(0.5, 0, 1, 1), min_visible=min_visible)) == is_kept


def test_coverage_of_one_box() -> None:
    expected = [[0, 0.25, 0.5, 0.25], [0, 0.5, 1, 0.5], [0, 0, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(grid_coverage((Box(0.375, 0.125, 0.875, 0.5),), (4, 4)), expected)


def test_coverage_is_that_of_the_union() -> None:
    """Compared with a count of points on a fine raster."""
    rng = random.Random(0)
    for _ in range(5):
        corners = [sorted(rng.choices(range(61), k=2)) + sorted(rng.choices(range(61), k=2)) for _ in range(3)]
        boxes = tuple(Box(left / 60, top / 60, right / 60, bottom / 60) for left, right, top, bottom in corners)
        raster = np.zeros((60, 60))
        for left, right, top, bottom in corners:
            raster[top:bottom, left:right] = 1
        expected = raster.reshape(3, 20, 4, 15).mean(axis=(1, 3))
        np.testing.assert_allclose(grid_coverage(boxes, (3, 4)), expected, atol=1e-6)
