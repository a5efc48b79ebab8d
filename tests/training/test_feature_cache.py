import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from captioning.models.encoder import Encoder
from captioning.preprocessing.image import open_image
from captioning.training import feature_cache
from captioning.training.feature_cache import _random_crop, cache_path, open_or_build
from captioning.utils.errors import CaptioningError


@pytest.fixture
def images(drawn: Path) -> list[Path]:
    return sorted((drawn / "images").iterdir())[:20]


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder("tiny", frozen=True)


def count(encoder: Encoder) -> list[int]:
    """Record the size of each batch that the encoder processes."""
    seen: list[int] = []
    encoder.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    return seen


def test_cached_features_equal_those_of_the_encoder(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    cache = open_or_build(tmp_path, encoder, images, batch_size=8)
    assert len(cache) == 20
    assert cache.features.dtype == np.float16
    for place in (7, 0, 19):
        expected = encoder(encoder.transform(open_image(images[place]))[None])
        torch.testing.assert_close(cache.load([place]).float(), expected, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(cache.load([3, 3, 11]), torch.cat([cache.load([3]), cache.load([3]), cache.load([11])]))


def test_each_image_is_encoded_once(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    seen = count(encoder)
    first = open_or_build(tmp_path, encoder, images, batch_size=8)
    assert seen == [8, 8, 4]
    again = open_or_build(tmp_path, encoder, images)
    assert seen == [8, 8, 4]
    assert again.cache_dir == first.cache_dir


def test_flipped_view(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    cache = open_or_build(tmp_path, encoder, images, hflip=True)
    assert cache.is_flipped == [False, True]
    pixels = encoder.transform(open_image(images[5]))[None]
    torch.testing.assert_close(cache.load([5], [1]).float(), encoder(pixels.flip(-1)), atol=2e-3, rtol=2e-3)
    assert not torch.equal(cache.load([5]), cache.load([5], [1]))


def test_crops_are_regions_of_their_image(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    cache = open_or_build(tmp_path, encoder, images, hflip=True, num_crops=3)
    assert cache.is_flipped == [False, True, False]
    assert cache.features.shape[:2] == (3, 20)
    image, rng = open_image(images[5]), np.random.default_rng(5)
    for view, is_flipped in enumerate(cache.is_flipped):
        left, top, right, bottom = part = _random_crop(image.size, rng)
        assert 0 <= left < right <= image.width
        assert 0 <= top < bottom <= image.height
        assert right - left >= 0.59 * image.width
        assert bottom - top >= 0.59 * image.height
        pixels = encoder.transform(image.crop(part))[None]
        expected = encoder(pixels.flip(-1) if is_flipped else pixels)
        torch.testing.assert_close(cache.load([5], [view]).float(), expected, atol=2e-3, rtol=2e-3)


def test_crops_of_a_large_image_have_enough_pixels(
    tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (1000, 800)).save(tmp_path / "large.jpg")
    sides: list[int] = []

    def crop(image: Image.Image, part: tuple[int, int, int, int]) -> Image.Image:
        sides.append(min(part[2] - part[0], part[3] - part[1]))
        return image

    monkeypatch.setattr(Image.Image, "crop", crop)
    open_or_build(tmp_path, encoder, [tmp_path / "large.jpg"], num_crops=8)
    assert len(sides) == 8
    assert encoder.transform.image_size <= min(sides) < 200, "decoded at a reduced size"


def test_the_fingerprint_depends_on_everything(
    tmp_path: Path, encoder: Encoder, images: list[Path], drawn: Path
) -> None:
    cache_dirs = {cache_path(tmp_path, encoder, images, False)}
    cache_dirs.add(cache_path(tmp_path, encoder, images, True))
    cache_dirs.add(cache_path(tmp_path, encoder, images, True, num_crops=2))
    cache_dirs.add(cache_path(tmp_path, encoder, images, True, num_crops=3))
    cache_dirs.add(cache_path(tmp_path, encoder, images[:-1], False))
    cache_dirs.add(cache_path(tmp_path, encoder, [*images[1:], images[0]], False))
    cache_dirs.add(cache_path(tmp_path, Encoder("tiny", image_size=96, frozen=True), images, False))
    cache_dirs.add(cache_path(tmp_path, Encoder("tiny", resize_mode="crop", frozen=True), images, False))
    with torch.no_grad():
        next(encoder.parameters())[0, 0, 0, 0] += 1e-3
    cache_dirs.add(cache_path(tmp_path, encoder, images, False))
    copy = tmp_path / images[0].parent.name / images[0].name
    copy.parent.mkdir()
    copy.write_bytes(images[0].read_bytes())
    os.utime(copy, ns=(0, 0))
    cache_dirs.add(cache_path(tmp_path, encoder, [copy, *images[1:]], False))
    assert len(cache_dirs) == 10


@pytest.mark.parametrize("num_crops", [0, 1])
def test_an_interrupted_build_continues(
    tmp_path: Path, encoder: Encoder, images: list[Path], monkeypatch: pytest.MonkeyPatch, num_crops: int
) -> None:
    whole = open_or_build(tmp_path / "whole", encoder, images, batch_size=4, num_crops=num_crops)
    seen = count(encoder)

    def stop_at_last(image: Path, size: int) -> Image.Image:
        if image == images[-1]:
            raise KeyboardInterrupt
        return open_image(image, size)

    monkeypatch.setattr(feature_cache, "_FLUSH_EVERY_N_BATCHES", 2)
    monkeypatch.setattr(feature_cache, "open_image", stop_at_last)
    with pytest.raises(KeyboardInterrupt):
        open_or_build(tmp_path / "parts", encoder, images, batch_size=4, num_crops=num_crops)
    assert sum(seen) == 16
    assert not cache_path(tmp_path / "parts", encoder, images, False, num_crops).exists(), (
        "an incomplete cache is not used"
    )
    monkeypatch.undo()
    resumed = open_or_build(tmp_path / "parts", encoder, images, batch_size=4, num_crops=num_crops)
    assert sum(seen) == 20
    assert np.array_equal(resumed.features, whole.features)
    assert sorted(path.name for path in resumed.cache_dir.iterdir()) == ["features.npy", "images.txt"]


def test_concurrent_runs_build_once(tmp_path: Path, images: list[Path]) -> None:
    encoders = []
    for _ in range(2):
        torch.manual_seed(0)
        encoders.append(Encoder("tiny", frozen=True))
    seen = [count(encoder) for encoder in encoders]
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda encoder: open_or_build(tmp_path, encoder, images, batch_size=2), encoders)
    assert first.cache_dir == second.cache_dir
    assert sorted(map(sum, seen)) == [0, 20]


def test_without_posix_fallocate(
    tmp_path: Path, encoder: Encoder, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    assert len(open_or_build(tmp_path, encoder, images)) == 20


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line_and_leaves_no_cache(
    tmp_path: Path, encoder: Encoder, images: list[Path], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        CaptioningError, match=r"the disk is full\); free disk space, or set another data.feature_cache_dir"
    ):
        open_or_build(tmp_path, encoder, images)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    monkeypatch.undo()
    assert len(open_or_build(tmp_path, encoder, images)) == 20


def test_a_directory_that_cannot_be_written(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptioningError, match="cannot be written"):
        open_or_build(tmp_path / "file", encoder, images)


def test_an_unreadable_image_is_named(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    with pytest.raises(CaptioningError, match=r"bad\.jpg"):
        open_or_build(tmp_path, encoder, [*images, bad])
