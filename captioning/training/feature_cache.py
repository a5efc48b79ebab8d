"""Feature cache: features of a frozen encoder, or of its frozen blocks, computed once per image.

Flipped images and random crops are cached as further views of an image.

Features are one memory-mapped float16 array in a directory whose name contains a fingerprint of the encoder, its
weights, the transform and the images. An incomplete cache has the suffix ``.partial``; an interrupted build continues.
"""

import dataclasses
import errno
import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from tqdm import tqdm

from captioning.models.encoder import FeatureExtractor
from captioning.preprocessing.image import ImageTransform, open_image
from captioning.utils.atomic_io import atomic_dir, atomic_write
from captioning.utils.errors import CaptioningError

_MIN_CROP_SCALE = 0.6  # of width and height; smaller crops lose objects that the captions mention
_FLUSH_EVERY_N_BATCHES = 16  # flushing the large array after each batch takes longer than the CNN
_FINGERPRINT_VERSION = 2


class FeatureCache:
    """Features of a list of images, in one or more views.

    Args:
        cache_dir: directory of a complete cache.
        hflip: whether every second view is flipped horizontally.
    """

    def __init__(self, cache_dir: Path, hflip: bool) -> None:
        self.cache_dir = cache_dir
        self.hflip = hflip
        self.features = np.load(cache_dir / "features.npy", mmap_mode="r")  # (views, N, L, D)

    @property
    def num_views(self) -> int:
        return len(self.features)

    @property
    def is_flipped(self) -> list[bool]:
        """Whether each view is flipped."""
        return [_is_flipped(view, self.hflip) for view in range(self.num_views)]

    def __len__(self) -> int:
        """Number of images."""
        return self.features.shape[1]

    def load(self, rows: Sequence[int], views: Sequence[int] | None = None) -> Tensor:
        """Features (B, L, D) in float16 of images, in the given views or in view 0."""
        index = np.asarray(rows, dtype=np.int64)
        view_index = np.zeros_like(index) if views is None else np.asarray(views, dtype=np.int64)
        return torch.from_numpy(self.features[view_index, index])


def _is_flipped(view: int, hflip: bool) -> bool:
    return hflip and view % 2 == 1


def fingerprint(extractor: FeatureExtractor, images: Sequence[Path], hflip: bool, num_crops: int = 0) -> str:
    """Hash of everything that the features depend on. Files are identified by name, size and modification time.

    The keys of the hashed dictionary are fixed here, so that renaming a setting does not invalidate caches.
    """
    digest = hashlib.sha256()
    for name, tensor in extractor.state_dict().items():
        digest.update(name.partition(".")[2].encode())  # without the name of the attribute that holds the CNN
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    config, transform = extractor.config, extractor.transform
    recipe = {
        "version": _FINGERPRINT_VERSION,
        "backbone": config["backbone"],
        "dropped_blocks": config.get("dropped_blocks", 0),
        "transform": list(dataclasses.asdict(transform).values()),
        "hflip": hflip,
        "crops": [num_crops, _MIN_CROP_SCALE] if num_crops else None,
    }
    digest.update(json.dumps(recipe, sort_keys=True).encode())
    for image in images:
        status = image.stat()
        digest.update(f"{image.parent.name}/{image.name}:{status.st_size}:{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def cache_path(
    root: Path, extractor: FeatureExtractor, images: Sequence[Path], hflip: bool, num_crops: int = 0
) -> Path:
    """Directory of the cache below ``root``; it need not exist."""
    name = extractor.config["backbone"].replace("/", "-")
    return root / f"{name}-{extractor.transform.image_size}-{fingerprint(extractor, images, hflip, num_crops)}"


def open_or_build(
    root: Path,
    extractor: FeatureExtractor,
    images: Sequence[Path],
    hflip: bool = False,
    device: torch.device | str = "cpu",
    batch_size: int = 32,
    num_crops: int = 0,
) -> FeatureCache:
    """Open the cache of these images. If it does not exist or is incomplete, build it with a progress bar.

    Args:
        root: directory of all caches.
        extractor: the encoder or its frozen blocks.
        images: image files.
        hflip: add a flipped view.
        device: device of the encoder.
        batch_size: number of images decoded at a time, each with all crops.
        num_crops: cache this number of random crops per image instead of the image; with ``hflip`` every second one is
            flipped.
    """
    cache_dir = cache_path(root, extractor, images, hflip, num_crops)
    if not cache_dir.is_dir():
        try:
            root.mkdir(parents=True, exist_ok=True)
            with FileLock(root / f"{cache_dir.name}.lock"):  # concurrent runs must not build the same cache
                if not cache_dir.is_dir():
                    with atomic_dir(cache_dir, resume=True) as partial_dir:
                        _build(partial_dir, extractor, images, hflip, num_crops, device, batch_size)
        except OSError as error:
            size = _num_bytes(extractor, images, _num_views(hflip, num_crops)) / 1e9
            reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
            raise CaptioningError(
                f"{cache_dir}: the feature cache ({size:.1f} GB) cannot be written ({reason}); free disk space, or set "
                "another data.feature_cache_dir"
            ) from None
    return FeatureCache(cache_dir, hflip)


def _num_views(hflip: bool, num_crops: int) -> int:
    return num_crops or 1 + hflip


def _num_bytes(extractor: FeatureExtractor, images: Sequence[Path], num_views: int) -> int:
    return num_views * len(images) * math.prod(extractor.grid_size) * extractor.feature_size * 2


def _build(
    partial_dir: Path,
    extractor: FeatureExtractor,
    images: Sequence[Path],
    hflip: bool,
    num_crops: int,
    device: torch.device | str,
    batch_size: int,
) -> None:
    extractor = extractor.for_inference()
    features = _allocate(partial_dir / "features.npy", extractor, images, _num_views(hflip, num_crops))
    progress_file = partial_dir / "progress"
    done = int(progress_file.read_text()) if progress_file.is_file() else 0
    description = f"features of {extractor.config['backbone']}" + (f", {num_crops} crops" if num_crops else "")
    with tqdm(total=len(images), initial=done, desc=description, unit="image") as bar:
        for pixels in _load_batches(range(done, len(images)), images, extractor.transform, num_crops, batch_size):
            count = pixels.shape[1]
            with torch.inference_mode():
                for view in range(len(features)):
                    batch = pixels[view % len(pixels)]
                    batch = (batch.flip(-1) if _is_flipped(view, hflip) else batch).to(device)
                    features[view, done : done + count] = extractor(batch).to("cpu", torch.float16).numpy()
            done += count
            bar.update(count)
            if done % (_FLUSH_EVERY_N_BATCHES * batch_size) == 0:
                features.flush()
                _write_text(progress_file, str(done))
    features.flush()
    _write_text(partial_dir / "images.txt", "\n".join(map(str, images)))
    progress_file.unlink(missing_ok=True)


def _allocate(path: Path, extractor: FeatureExtractor, images: Sequence[Path], num_views: int) -> np.memmap:
    """Create the array and reserve its disk space, so that a full disk is an error at the start."""
    if path.is_file():
        return np.lib.format.open_memmap(path, mode="r+")
    shape = (num_views, len(images), math.prod(extractor.grid_size), extractor.feature_size)
    with atomic_write(path) as temporary:
        array = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float16, shape=shape)
        if hasattr(os, "posix_fallocate"):
            with temporary.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, temporary.stat().st_size)
        else:  # macOS and Windows: writing zeros reserves the space as well, but is slower
            array[:] = 0
            array.flush()
    return array


def _load_batches(
    indices: Sequence[int], images: Sequence[Path], transform: ImageTransform, num_crops: int, batch_size: int
) -> Iterator[Tensor]:
    """Yield pixels (num_crops or 1, B, 3, S, S). A thread decodes the next batch while the encoder runs."""
    # JPEG files are downscaled while decoding, but a crop must not have fewer pixels than the encoder's input.
    min_side = math.ceil(transform.image_size / _MIN_CROP_SCALE) if num_crops else transform.image_size

    def load_batch(batch: Sequence[int]) -> Tensor:
        return torch.stack([load_image(index) for index in batch], dim=1)

    def load_image(index: int) -> Tensor:
        image = open_image(images[index], min_side)
        if not num_crops:
            return transform(image)[None]
        rng = np.random.default_rng(index)  # an interrupted build continues with the same crops
        return torch.stack([transform(image.crop(_random_crop(image.size, rng))) for _ in range(num_crops)])

    batches = [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(load_batch, batches[0]) if batches else None
        for following in [*batches[1:], None]:
            pixels = pending.result() if pending else None
            pending = thread.submit(load_batch, following) if following else None
            if pixels is not None:
                yield pixels


def _random_crop(size: tuple[int, int], rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a random crop of an image of this width and height."""
    width, height = (round(side * rng.uniform(_MIN_CROP_SCALE, 1)) for side in size)
    left, top = (int(rng.integers(room + 1)) for room in (size[0] - width, size[1] - height))
    return left, top, left + width, top + height


def _write_text(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
