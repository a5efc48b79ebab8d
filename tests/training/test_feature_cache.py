import errno
import os
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from captioning.datasets.content_hash import hash_content
from captioning.datasets.view import ViewKey, reencode, train_view_keys
from captioning.models.encoder import Encoder
from captioning.preprocessing.image import open_image
from captioning.training import feature_cache, feature_extraction
from captioning.training.feature_cache import FeatureCache, cache_path, open_or_build
from captioning.utils.errors import CaptioningError

WHOLE = (ViewKey(),)


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


def request(images: Iterable[Path], view_keys: Sequence[ViewKey] = WHOLE) -> list[tuple[Path, Sequence[ViewKey]]]:
    return [(image, view_keys) for image in images]


def load(cache: FeatureCache, image: Path, view_key: ViewKey = WHOLE[0]) -> torch.Tensor:
    return cache.load([cache.row(hash_content(image), view_key)])


def entries(cache: FeatureCache) -> dict[str, bytes]:
    keys = (cache.cache_dir / "keys.txt").read_text().splitlines()
    return {key: row.tobytes() for key, row in zip(keys, cache.features, strict=True)}


def test_cached_features_equal_those_of_the_encoder(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    cache = open_or_build(tmp_path, encoder, request(images), batch_size=8)
    assert len(cache) == 20
    for image in (images[7], images[0], images[19]):
        expected = encoder(encoder.transform(open_image(image))[None])
        assert load(cache, image).dtype == torch.float16
        torch.testing.assert_close(load(cache, image).float(), expected, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(cache.load([3, 3, 11]), torch.cat([cache.load([3]), cache.load([3]), cache.load([11])]))


def test_the_files_of_a_cache(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    """Other programs write this format."""
    cache = open_or_build(tmp_path, encoder, request(images, train_view_keys(hflip=True, num_crops=2)))
    keys = (cache.cache_dir / "keys.txt").read_text()
    names = ("0", "flip", "crop0", "crop1-flip")
    assert keys == "".join(f"{hash_content(image)} {name}\n" for image in images for name in names)
    rows = np.fromfile(cache.cache_dir / "features.bin", np.float16).reshape(80, *cache.features.shape[1:])
    assert np.array_equal(rows, cache.features)
    assert '"format": 3' in (cache.cache_dir / "meta.json").read_text()


def test_each_image_is_encoded_once(
    tmp_path: Path, encoder: Encoder, images: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    seen = count(encoder)
    first = open_or_build(tmp_path, encoder, request(images), batch_size=8)
    assert seen == [8, 8, 4]
    assert "20 of 20 images lack 20 views; 0.0 GB will be added" in capsys.readouterr().err
    again = open_or_build(tmp_path, encoder, request(images))
    assert seen == [8, 8, 4]
    assert again.cache_dir == first.cache_dir
    assert capsys.readouterr().err == ""


def test_lists_of_images_share_entries(
    tmp_path: Path, encoder: Encoder, images: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Another list, order, name, place or date of the files computes only what is new."""
    first = open_or_build(tmp_path, encoder, request(images[:12]))
    before = entries(first)
    seen = count(encoder)
    copies = [Path(shutil.copy(image, tmp_path / f"copy-{image.name}")) for image in images]
    for copy in copies:
        os.utime(copy, ns=(0, 0))
    capsys.readouterr()
    both = open_or_build(tmp_path, encoder, request([*copies[::-1], *images]))
    assert sum(seen) == 8
    assert "8 of 20 images lack 8 views" in capsys.readouterr().err
    assert both.cache_dir == first.cache_dir
    after = entries(both)
    assert len(after) == 20
    assert after.items() >= before.items()
    assert torch.equal(load(both, copies[3]), load(first, images[3]))


def test_more_views_compute_only_the_new_ones(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    open_or_build(tmp_path / "steps", encoder, request(images, train_view_keys(False, 1)))
    seen = count(encoder)
    steps = open_or_build(tmp_path / "steps", encoder, request(images, train_view_keys(True, 3)))
    assert sum(seen) == 20 * (5 - 2)
    once = open_or_build(tmp_path / "once", encoder, request(images, train_view_keys(True, 3)))
    for key, row in entries(once).items():
        first, second = (np.frombuffer(part, np.float16).astype(float) for part in (row, entries(steps)[key]))
        np.testing.assert_allclose(first, second, atol=2e-3, rtol=2e-3)


def test_files_with_the_same_content_get_the_views_of_both(
    tmp_path: Path, encoder: Encoder, images: list[Path]
) -> None:
    copy = Path(shutil.copy(images[0], tmp_path / "copy.jpg"))
    cache = open_or_build(tmp_path, encoder, [(images[0], WHOLE), (copy, train_view_keys(True, 0))])
    assert len(cache) == 2
    assert not torch.equal(load(cache, images[0]), load(cache, images[0], ViewKey(flipped=True)))


def test_views_are_flipped_and_cropped(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    view_keys = train_view_keys(hflip=True, num_crops=3)
    cache = open_or_build(tmp_path, encoder, request(images, view_keys))
    image = open_image(images[5])
    for view_key in view_keys:
        view = view_key.locate(hash_content(images[5]))
        pixels = encoder.transform(view.crop(image))[None]
        expected = encoder(pixels.flip(-1) if view.flipped else pixels)
        torch.testing.assert_close(load(cache, images[5], view_key).float(), expected, atol=2e-3, rtol=2e-3)


def test_reencoded_views_are_cached_under_their_own_names(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    view_keys = train_view_keys(hflip=False, num_crops=1, reencode=True)
    cache = open_or_build(tmp_path, encoder, request(images, [*WHOLE, *view_keys]))
    assert len(cache) == 3 * len(images)
    content_hash = hash_content(images[5])
    for view_key, decoded_side in zip(view_keys, (64, 107), strict=True):
        image = open_image(images[5], decoded_side)
        region = view_key.locate(content_hash).crop(image)
        expected = encoder(encoder.transform(reencode(region, content_hash, view_key))[None])
        deviation = (load(cache, images[5], view_key) - expected).norm()
        assert deviation < 1e-3 * expected.norm(), "half precision"
    is_changed = [not torch.equal(load(cache, image), load(cache, image, view_keys[0])) for image in images]
    assert any(is_changed)
    assert not all(is_changed)


def test_large_images_are_decoded_with_enough_pixels(
    tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crops need more pixels than the whole image, which is decoded as for inference with crops or without."""
    Image.effect_noise((1000, 800), 100).convert("RGB").save(tmp_path / "large.jpg")
    sides: list[int | None] = []

    def open_and_record(path: Path, min_side: int | None) -> Image.Image:
        sides.append(min_side)
        return open_image(path, min_side)

    monkeypatch.setattr(feature_extraction, "open_image", open_and_record)
    large = tmp_path / "large.jpg"
    crops = open_or_build(tmp_path / "a", encoder, request([large], train_view_keys(False, 4)))
    assert sorted(sides) == [64, 107], "decoded once for all crops"
    alone = open_or_build(tmp_path / "b", encoder, request([large]))
    torch.testing.assert_close(load(crops, large), load(alone, large), atol=2e-3, rtol=2e-3)


def test_the_fingerprint_ignores_the_sign_of_zero(tmp_path: Path, encoder: Encoder) -> None:
    """EMAWeights changes -0.0 to 0.0; a resumed run must find the cache of the run that it continues."""
    weights = next(encoder.parameters())
    paths = set()
    for zero in (0.0, -0.0):
        with torch.no_grad():
            weights[0, 0, 0, 0] = zero
        paths.add(cache_path(tmp_path, encoder))
    assert len(paths) == 1


def test_the_fingerprint_depends_on_weights_and_settings(tmp_path: Path, encoder: Encoder) -> None:
    paths = {cache_path(tmp_path, encoder)}
    assert cache_path(tmp_path, Encoder("tiny", frozen=True)) not in paths, "other random weights"
    paths.add(cache_path(tmp_path, encoder.frozen_trunk(2)))
    encoder.config["projection_size"] = None
    assert cache_path(tmp_path, encoder) in paths, "a further setting without a value"
    encoder.config["projection_size"] = 8
    paths.add(cache_path(tmp_path, encoder))
    for settings in ({}, {"image_size": 96}, {"resize_mode": "crop"}):
        torch.manual_seed(0)
        other = Encoder("tiny", frozen=True, **settings)
        assert (cache_path(tmp_path, other) in paths) == (not settings)
        paths.add(cache_path(tmp_path, other))
    with torch.no_grad():
        next(other.parameters())[0, 0, 0, 0] += 1e-3
    paths.add(cache_path(tmp_path, other))
    assert len(paths) == 6


@pytest.mark.parametrize("num_crops", [0, 2])
def test_an_interrupted_build_continues(
    tmp_path: Path, encoder: Encoder, images: list[Path], monkeypatch: pytest.MonkeyPatch, num_crops: int
) -> None:
    wanted = request(images, train_view_keys(False, num_crops))
    whole = open_or_build(tmp_path / "whole", encoder, wanted, batch_size=4 * (1 + num_crops))
    seen = count(encoder)

    def stop_at_last(image: Path, size: int) -> Image.Image:
        if image == images[-1]:
            raise KeyboardInterrupt
        return open_image(image, size)

    monkeypatch.setattr(feature_extraction, "open_image", stop_at_last)
    with pytest.raises(KeyboardInterrupt):
        open_or_build(tmp_path / "parts", encoder, wanted, batch_size=4 * (1 + num_crops))
    monkeypatch.undo()
    assert sum(seen) == 16 * (1 + num_crops)
    directory = cache_path(tmp_path / "parts", encoder)
    with (directory / "features.bin").open("ab") as file:
        file.write(b"half a row")
    with (directory / "keys.txt").open("a") as file:
        file.write("half a k")
    resumed = open_or_build(tmp_path / "parts", encoder, wanted, batch_size=4 * (1 + num_crops))
    assert sum(seen) == 20 * (1 + num_crops)
    assert entries(resumed) == entries(whole)


def test_keys_without_their_rows_do_not_count(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    cache = open_or_build(tmp_path, encoder, request(images))
    before = entries(cache)
    os.truncate(cache.cache_dir / "features.bin", 5 * cache.features[0].nbytes - 1)
    seen = count(encoder)
    assert entries(open_or_build(tmp_path, encoder, request(images), batch_size=4)).keys() == before.keys()
    assert sum(seen) == 16


def test_concurrent_runs_build_once(tmp_path: Path, images: list[Path]) -> None:
    encoders = []
    for _ in range(2):
        torch.manual_seed(0)
        encoders.append(Encoder("tiny", frozen=True))
    seen = [count(encoder) for encoder in encoders]

    def build(encoder: Encoder) -> FeatureCache:
        return open_or_build(tmp_path, encoder, request(images), batch_size=2)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(build, encoders)
    assert first.cache_dir == second.cache_dir
    assert sorted(map(sum, seen)) == [0, 20]


def test_too_little_disk_space_is_refused_before_the_build(
    tmp_path: Path, encoder: Encoder, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    seen = count(encoder)
    with pytest.raises(CaptioningError, match=r"needs 0.0 GB more, but the disk has 0.0 GB free; free disk space"):
        open_or_build(tmp_path, encoder, request(images))
    assert seen == []
    assert not list(tmp_path.rglob("features.bin"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line(
    tmp_path: Path, encoder: Encoder, images: list[Path], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(feature_cache, "extract_features", full)
    with pytest.raises(
        CaptioningError, match=r"the disk is full\); free disk space, or set another data.feature_cache_dir"
    ):
        open_or_build(tmp_path, encoder, request(images))
    monkeypatch.undo()
    assert len(open_or_build(tmp_path, encoder, request(images))) == 20


def test_a_directory_that_cannot_be_written(tmp_path: Path, encoder: Encoder, images: list[Path]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptioningError, match="cannot be written"):
        open_or_build(tmp_path / "file", encoder, request(images))


def test_an_unreadable_image_is_named_and_the_others_are_kept(
    tmp_path: Path, encoder: Encoder, images: list[Path]
) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    with pytest.raises(CaptioningError, match=r"bad\.jpg"):
        open_or_build(tmp_path, encoder, request([*images, bad]), batch_size=10)
    seen = count(encoder)
    assert len(open_or_build(tmp_path, encoder, request(images))) == 20
    assert sum(seen) in (0, 10), "the thread may have failed while the second batch was encoded"
