import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from captioning.datasets import features
from captioning.encoders import Encoder
from captioning.errors import CaptioningError
from captioning.images import open_image


@pytest.fixture
def images(drawn: Path) -> list[Path]:
    return sorted((drawn / "images").iterdir())[:20]


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder("tiny", frozen=True)


def count(encoder: Encoder) -> list[int]:
    """How many pictures go through the CNN, a number for each batch from now on."""
    seen: list[int] = []
    encoder.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    return seen


def test_annotations_are_those_of_the_cnn(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    cached = features.ensure(tmp_path, encoder, images, batch_size=8)
    assert len(cached) == 20
    assert cached.annotations.dtype == np.float16
    for place in (7, 0, 19):
        expected = encoder(encoder.transform(open_image(images[place]))[None])
        torch.testing.assert_close(cached[[place]].float(), expected, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(cached[[3, 3, 11]], torch.cat([cached[[3]], cached[[3]], cached[[11]]]))


def test_each_picture_once_ever(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    seen = count(encoder)
    first = features.ensure(tmp_path, encoder, images, batch_size=8)
    assert seen == [8, 8, 4]
    again = features.ensure(tmp_path, encoder, images)
    assert seen == [8, 8, 4]
    assert again.folder == first.folder


def test_mirror_images(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    cached = features.ensure(tmp_path, encoder, images, mirror=True)
    assert cached.mirrored == [False, True]
    pixels = encoder.transform(open_image(images[5]))[None]
    torch.testing.assert_close(cached[[25]].float(), encoder(pixels.flip(-1)), atol=2e-3, rtol=2e-3)
    assert not torch.equal(cached[[5]], cached[[25]])


def test_crops_are_parts_of_their_picture(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    cached = features.ensure(tmp_path, encoder, images, mirror=True, crops=3)
    assert cached.mirrored == [False, True, False]
    assert cached.annotations.shape[:2] == (3, 20)
    photo, chance = open_image(images[5]), np.random.default_rng(5)
    for copy, mirrored in enumerate(cached.mirrored):
        left, top, right, bottom = part = features._random_crop(photo.size, chance)
        assert 0 <= left < right <= photo.width
        assert 0 <= top < bottom <= photo.height
        assert right - left >= 0.59 * photo.width
        assert bottom - top >= 0.59 * photo.height
        pixels = encoder.transform(photo.crop(part))[None]
        expected = encoder(pixels.flip(-1) if mirrored else pixels)
        torch.testing.assert_close(cached[[5 + 20 * copy]].float(), expected, atol=2e-3, rtol=2e-3)


def test_crops_of_a_large_photo_have_all_the_pixels_that_the_cnn_takes(
    tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (1000, 800)).save(tmp_path / "large.jpg")
    sides: list[int] = []

    def crop(image: Image.Image, part: tuple[int, int, int, int]) -> Image.Image:
        sides.append(min(part[2] - part[0], part[3] - part[1]))
        return image

    monkeypatch.setattr(Image.Image, "crop", crop)
    features.ensure(tmp_path, encoder, [tmp_path / "large.jpg"], crops=8)
    assert len(sides) == 8
    assert encoder.transform.size <= min(sides) < 200, "and not many more than that"


def test_whatever_changes_is_built_anew(tmp_path: Path, encoder: Encoder, images: list[Path], drawn: Path) -> None:
    folders = {features.locate(tmp_path, encoder, images, False)}
    folders.add(features.locate(tmp_path, encoder, images, True))
    folders.add(features.locate(tmp_path, encoder, images, True, crops=2))
    folders.add(features.locate(tmp_path, encoder, images, True, crops=3))
    folders.add(features.locate(tmp_path, encoder, images[:-1], False))
    folders.add(features.locate(tmp_path, encoder, [*images[1:], images[0]], False))
    folders.add(features.locate(tmp_path, Encoder("tiny", image_size=96, frozen=True), images, False))
    folders.add(features.locate(tmp_path, Encoder("tiny", fit="crop", frozen=True), images, False))
    with torch.no_grad():
        next(encoder.parameters())[0, 0, 0, 0] += 1e-3
    folders.add(features.locate(tmp_path, encoder, images, False))
    copy = tmp_path / images[0].parent.name / images[0].name
    copy.parent.mkdir()
    copy.write_bytes(images[0].read_bytes())
    os.utime(copy, ns=(0, 0))
    folders.add(features.locate(tmp_path, encoder, [copy, *images[1:]], False))
    assert len(folders) == 10


@pytest.mark.parametrize("crops", [0, 1])
def test_an_interrupted_build_goes_on(
    tmp_path: Path, encoder: Encoder, images: list[Path], monkeypatch: pytest.MonkeyPatch, crops: int
) -> None:
    whole = features.ensure(tmp_path / "whole", encoder, images, batch_size=4, crops=crops)
    seen = count(encoder)

    def stop_at_last(picture: Path, size: int) -> Image.Image:
        if picture == images[-1]:
            raise KeyboardInterrupt
        return open_image(picture, size)

    monkeypatch.setattr(features, "_SAVE_EVERY", 2)
    monkeypatch.setattr(features, "open_image", stop_at_last)
    with pytest.raises(KeyboardInterrupt):
        features.ensure(tmp_path / "parts", encoder, images, batch_size=4, crops=crops)
    assert sum(seen) == 16
    assert not features.locate(tmp_path / "parts", encoder, images, False, crops).exists(), "half a cache is none"
    monkeypatch.undo()
    resumed = features.ensure(tmp_path / "parts", encoder, images, batch_size=4, crops=crops)
    assert sum(seen) == 20
    assert np.array_equal(resumed.annotations, whole.annotations)
    assert sorted(path.name for path in resumed.folder.iterdir()) == ["annotations.npy", "pictures.txt"]


def test_two_that_begin_together_build_once(tmp_path: Path, images: list[Path]) -> None:
    encoders = []
    for _ in range(2):
        torch.manual_seed(0)
        encoders.append(Encoder("tiny", frozen=True))
    seen = [count(encoder) for encoder in encoders]
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda encoder: features.ensure(tmp_path, encoder, images, batch_size=2), encoders)
    assert first.folder == second.folder
    assert sorted(map(sum, seen)) == [0, 20]


def test_without_posix_fallocate(
    tmp_path: Path, encoder: Encoder, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    assert len(features.ensure(tmp_path, encoder, images)) == 20


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line_and_leaves_no_cache(
    tmp_path: Path, encoder: Encoder, images: list[Path], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        CaptioningError, match=r"the disk is full\); make room, or name another folder with --data.features"
    ):
        features.ensure(tmp_path, encoder, images)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    monkeypatch.undo()
    assert len(features.ensure(tmp_path, encoder, images)) == 20


def test_a_folder_that_cannot_be_written(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptioningError, match="cannot be written"):
        features.ensure(tmp_path / "file", encoder, images)


def test_a_picture_that_cannot_be_opened_is_named(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no picture")
    with pytest.raises(CaptioningError, match=r"bad\.jpg"):
        features.ensure(tmp_path, encoder, [*images, bad])
