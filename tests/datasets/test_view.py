from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioning.datasets.content_hash import hash_content
from captioning.datasets.view import View, ViewKey, random_crop_box, reencode, train_view_keys
from captioning.preprocessing.image import Box
from captioning.utils.errors import CaptioningError

HASH = "0123456789abcdef" * 2


def test_names_of_views() -> None:
    assert [str(key) for key in train_view_keys(hflip=False, num_crops=2)] == ["0", "crop0", "crop1"]
    assert [str(key) for key in train_view_keys(hflip=True, num_crops=3)] == [
        "0",
        "flip",
        "crop0",
        "crop1-flip",
        "crop2",
    ]
    assert [str(key) for key in train_view_keys(hflip=True, num_crops=2, reencode=True)] == [
        "0-reencoded",
        "flip-reencoded",
        "crop0-reencoded",
        "crop1-flip-reencoded",
    ]


def test_geometry_of_views() -> None:
    assert ViewKey().locate(HASH) == View(False, Box(0, 0, 1, 1))
    assert ViewKey(flipped=True).locate(HASH) == View(True, Box(0, 0, 1, 1))
    assert ViewKey(3, flipped=True).locate(HASH) == View(True, random_crop_box(HASH, 3))


def test_crop_boxes_depend_on_content_and_number_only() -> None:
    boxes = [random_crop_box(f"{image:032x}", number) for image in range(20) for number in range(5)]
    assert len(set(boxes)) == 100
    assert boxes[7] == random_crop_box(f"{1:032x}", 2)
    for box in boxes:
        assert 0 <= box.left < box.right <= 1
        assert 0 <= box.top < box.bottom <= 1
        assert 0.6 <= box.right - box.left <= 1
        assert 0.6 <= box.bottom - box.top <= 1
    assert np.std([box.left / (1 - box.right + box.left) for box in boxes]) == pytest.approx(12**-0.5, abs=0.05), (
        "uniform"
    )


def test_a_crop_is_the_region_of_the_image() -> None:
    image = Image.fromarray(np.arange(10 * 20 * 3, dtype=np.uint8).reshape(10, 20, 3))
    assert View().crop(image) is image
    part = np.asarray(View(True, Box(0.25, 0.1, 0.75, 0.9)).crop(image))
    assert np.array_equal(part, np.asarray(image)[1:9, 5:15])


def test_reencoding_resizes_and_compresses_by_random_amounts() -> None:
    rows, columns = np.mgrid[:48, :64]
    image = Image.fromarray(np.stack([4 * columns, 5 * rows, 2 * rows + 2 * columns], axis=-1).astype(np.uint8))
    key = ViewKey(reencoded=True)
    results = [reencode(image, f"{number:032x}", key) for number in range(200)]
    sizes = [result.width / image.width for result in results]
    assert 0.35 < np.mean([size != 1 for size in sizes]) < 0.65
    assert 0.78 <= min(sizes) < 1 < 2 < max(sizes) <= 2.52
    assert all(abs(result.height / image.height - size) < 0.03 for result, size in zip(results, sizes, strict=True))
    same_size = [result for result in results if result.size == image.size]
    errors = [np.abs(np.asarray(result, int) - np.asarray(image, int)).mean() for result in same_size]
    assert 0.3 < np.mean([error > 0 for error in errors]) < 0.7, "half of the images are compressed"
    assert max(errors) < 8, "the content is the same"
    repeated = reencode(image, f"{7:032x}", key)
    assert repeated.size == results[7].size
    assert np.array_equal(np.asarray(repeated), np.asarray(results[7]))


def test_the_hash_depends_on_content_only(tmp_path: Path) -> None:
    for name, text in (("a.jpg", "one"), ("b.jpg", "one"), ("c.jpg", "two")):
        (tmp_path / name).write_text(text)
    first, second, other = (hash_content(tmp_path / name) for name in ("a.jpg", "b.jpg", "c.jpg"))
    assert first == second != other
    assert first == "7692c3ad3540bb803c020b3aee66cd88"
    (tmp_path / "a.jpg").write_text("three")
    assert hash_content(tmp_path / "a.jpg") not in (first, other)
    with pytest.raises(CaptioningError, match=r"none\.jpg: cannot be read"):
        hash_content(tmp_path / "none.jpg")
