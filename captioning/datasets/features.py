"""The feature cache: each picture goes through a frozen CNN, or that part of one which is frozen, once, ever.

So does its mirror image, and each random crop of it that training is to see.

Annotations are kept as one memory-mapped float16 array, in a folder named after a fingerprint of all they depend on:
the CNN, its weights, the transform, and the pictures. What is being built lies in ``….unfinished`` until it is whole,
so half a cache is never taken for a whole one, and a build that was interrupted goes on where it stopped.
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
from typing import TYPE_CHECKING

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from tqdm import tqdm

from captioning.errors import CaptioningError
from captioning.images import Transform, open_image

if TYPE_CHECKING:
    from captioning.encoders import Sight


_LEAST_SIDE = 0.6  # of a crop, as a share of the photo's: much less, and captions speak of what is not there
_SAVE_EVERY = 16  # batches: to flush so large an array after each of them would take longer than the CNN


class Features:
    """The annotations of a list of pictures, by their place in it.

    Args:
        folder: of a whole cache.
        mirror: whether every second copy is a mirror image.
    """

    def __init__(self, folder: Path, mirror: bool) -> None:
        self.folder = folder
        self.mirror = mirror
        self.annotations = np.load(folder / "annotations.npy", mmap_mode="r")  # (copies, N, L, D)

    @property
    def copies(self) -> int:
        """How many there are of each picture."""
        return len(self.annotations)

    @property
    def mirrored(self) -> list[bool]:
        """Of each copy whether it is a mirror image."""
        return [_is_mirrored(copy, self.mirror) for copy in range(self.copies)]

    def __len__(self) -> int:
        return self.annotations.shape[1]

    def __getitem__(self, indices: Sequence[int]) -> Tensor:
        """Annotations (B, L, D) in float16; indices from len(self) on are of the pictures' second copies, and so on."""
        copies, rows = np.divmod(np.asarray(indices, dtype=np.int64), len(self))
        return torch.from_numpy(self.annotations[copies, rows])


def _is_mirrored(copy: int, mirror: bool) -> bool:
    return mirror and copy % 2 == 1


def fingerprint(sight: "Sight", images: Sequence[Path], mirror: bool, crops: int = 0) -> str:
    """Changes with whatever the annotations depend on. Files count by name, size and time of change."""
    digest = hashlib.sha256()
    for name, tensor in sight.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    recipe = {"encoder": dict(sight.settings), "transform": dataclasses.asdict(sight.transform), "mirror": mirror}
    if crops:
        recipe |= {"crops": crops, "least_side": _LEAST_SIDE}
    digest.update(json.dumps(recipe, sort_keys=True).encode())
    for image in images:
        status = image.stat()
        digest.update(f"{image.parent.name}/{image.name}:{status.st_size}:{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def locate(root: Path, sight: "Sight", images: Sequence[Path], mirror: bool, crops: int = 0) -> Path:
    """The cache's folder below ``root``, whether it is there or not."""
    size = sight.transform.size
    return root / f"{sight.settings['name']}-{size}-{fingerprint(sight, images, mirror, crops)}"


def ensure(
    root: Path,
    sight: "Sight",
    images: Sequence[Path],
    mirror: bool = False,
    device: torch.device | str = "cpu",
    batch_size: int = 32,
    crops: int = 0,
) -> Features:
    """Open the cache of these pictures; build it first, with a progress bar, if it is not there or not whole.

    Args:
        root: folder of all caches.
        sight: the CNN.
        images: the pictures.
        mirror: keep mirror images too.
        device: where the CNN runs.
        batch_size: pictures that are opened at a time, each with all its crops.
        crops: keep so many random crops of each picture instead of the picture; with ``mirror`` every second of them is
            mirrored.
    """
    folder = locate(root, sight, images, mirror, crops)
    if not folder.is_dir():
        try:
            root.mkdir(parents=True, exist_ok=True)
            with FileLock(root / f"{folder.name}.lock"):  # two trainings begun together must not build the same cache
                if not folder.is_dir():
                    _build(folder, sight, images, mirror, crops, device, batch_size)
        except OSError as error:
            needed = _bytes(sight, images, _copies(mirror, crops)) / 1e9
            reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
            raise CaptioningError(
                f"{folder}: the feature cache ({needed:.1f} GB) cannot be written ({reason}); make room, or name "
                "another folder with --data.features"
            ) from None
    return Features(folder, mirror)


def _copies(mirror: bool, crops: int) -> int:
    return crops or 1 + mirror


def _bytes(sight: "Sight", images: Sequence[Path], copies: int) -> int:
    rows, columns = sight.grid
    return copies * len(images) * rows * columns * sight.width * 2


def _build(
    folder: Path,
    sight: "Sight",
    images: Sequence[Path],
    mirror: bool,
    crops: int,
    device: torch.device | str,
    batch_size: int,
) -> None:
    sight = sight.for_inference()
    unfinished = folder.with_name(folder.name + ".unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    annotations = _reserve(unfinished / "annotations.npy", sight, images, _copies(mirror, crops))
    progress = unfinished / "progress"
    done = int(progress.read_text()) if progress.is_file() else 0
    what = f"features of {sight.settings['name']}" + (f", {crops} crops" if crops else "")
    with tqdm(total=len(images), initial=done, desc=what, unit="picture") as bar:
        for pixels in _batches(range(done, len(images)), images, sight.transform, crops, batch_size):
            count = pixels.shape[1]
            with torch.inference_mode():
                for copy in range(len(annotations)):
                    own = pixels[copy % len(pixels)]
                    seen = sight((own.flip(-1) if _is_mirrored(copy, mirror) else own).to(device))  # (B, L, D)
                    annotations[copy, done : done + count] = seen.to("cpu", torch.float16).numpy()
            done += count
            bar.update(count)
            if done % (_SAVE_EVERY * batch_size) == 0:
                annotations.flush()
                _write(progress, str(done))
    annotations.flush()
    _write(unfinished / "pictures.txt", "\n".join(map(str, images)))
    progress.unlink(missing_ok=True)
    unfinished.replace(folder)


def _reserve(path: Path, sight: "Sight", images: Sequence[Path], copies: int) -> np.memmap:
    """The array, all its room taken at once: a full disk must be an error now, not a crash in the middle."""
    if path.is_file():
        return np.lib.format.open_memmap(path, mode="r+")
    rows, columns = sight.grid
    shape = (copies, len(images), rows * columns, sight.width)
    half_written = path.with_suffix(".new")
    try:
        array = np.lib.format.open_memmap(half_written, mode="w+", dtype=np.float16, shape=shape)
        if hasattr(os, "posix_fallocate"):
            with half_written.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, half_written.stat().st_size)
        else:  # macOS and Windows: what is written takes its room too, only slower
            array[:] = 0
            array.flush()
    except OSError:
        half_written.unlink(missing_ok=True)
        raise
    half_written.replace(path)
    return array


def _batches(
    numbers: Sequence[int], images: Sequence[Path], transform: Transform, crops: int, size: int
) -> Iterator[Tensor]:
    """Pixels (crops or 1, B, 3, side, side); the next batch is decoded while the CNN works on the last."""
    # A large JPEG is shrunk as it is decoded, but not so far that a crop would have fewer pixels than the CNN takes.
    smallest_side = math.ceil(transform.size / _LEAST_SIDE) if crops else transform.size

    def load(some: Sequence[int]) -> Tensor:
        return torch.stack([see(number) for number in some], dim=1)

    def see(number: int) -> Tensor:
        photo = open_image(images[number], smallest_side)
        if not crops:
            return transform(photo)[None]
        # Crops follow from the picture's number: an interrupted build goes on as it would have.
        chance = np.random.default_rng(number)
        return torch.stack([transform(photo.crop(_random_crop(photo.size, chance))) for _ in range(crops)])

    batches = [numbers[first : first + size] for first in range(0, len(numbers), size)]
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(load, batches[0]) if batches else None
        for following in [*batches[1:], None]:
            pixels = waiting.result() if waiting else None
            waiting = thread.submit(load, following) if following else None
            if pixels is not None:
                yield pixels


def _random_crop(size: tuple[int, int], chance: np.random.Generator) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a crop of a photo of that width and height."""
    width, height = (round(side * chance.uniform(_LEAST_SIDE, 1)) for side in size)
    left, top = (int(chance.integers(room + 1)) for room in (size[0] - width, size[1] - height))
    return left, top, left + width, top + height


def _write(path: Path, text: str) -> None:
    """All of it or nothing."""
    half_written = path.with_name(path.name + ".new")
    half_written.write_text(text, encoding="utf-8")
    half_written.replace(path)
