"""The feature cache: each picture goes through a frozen CNN, or that part of one which is frozen, once, ever.

Annotations are kept as one memory-mapped float16 array, in a folder named after a fingerprint of all they depend on:
the CNN, its weights, the transform, and the pictures. What is being built lies in ``….unfinished`` until it is whole,
so half a cache is never taken for a whole one, and a build that was interrupted goes on where it stopped.
"""

import dataclasses
import errno
import hashlib
import json
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


_SAVE_EVERY = 16  # batches: to flush so large an array after each of them would take longer than the CNN


class Features:
    """The annotations of a list of pictures, by their place in it.

    Args:
        folder: of a whole cache.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.annotations = np.load(folder / "annotations.npy", mmap_mode="r")  # (copies, N, L, D)

    @property
    def mirrored(self) -> bool:
        return len(self.annotations) == 2

    def __len__(self) -> int:
        return self.annotations.shape[1]

    def __getitem__(self, indices: Sequence[int]) -> Tensor:
        """Annotations (B, L, D) in float16; an index of len(self) or more is the picture's mirror image."""
        copies, rows = np.divmod(np.asarray(indices), len(self))
        return torch.from_numpy(self.annotations[copies, rows])


def fingerprint(sight: "Sight", images: Sequence[Path], mirror: bool) -> str:
    """Changes with whatever the annotations depend on. Files count by name, size and time of change."""
    digest = hashlib.sha256()
    for name, tensor in sight.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    recipe = {"encoder": dict(sight.settings), "transform": dataclasses.asdict(sight.transform), "mirror": mirror}
    digest.update(json.dumps(recipe, sort_keys=True).encode())
    for image in images:
        status = image.stat()
        digest.update(f"{image.parent.name}/{image.name}:{status.st_size}:{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def locate(root: Path, sight: "Sight", images: Sequence[Path], mirror: bool) -> Path:
    """The cache's folder below ``root``, whether it is there or not."""
    size = sight.transform.size
    return root / f"{sight.settings['name']}-{size}-{fingerprint(sight, images, mirror)}"


def ensure(
    root: Path,
    sight: "Sight",
    images: Sequence[Path],
    mirror: bool = False,
    device: torch.device | str = "cpu",
    batch_size: int = 32,
) -> Features:
    """Open the cache of these pictures; build it first, with a progress bar, if it is not there or not whole."""
    folder = locate(root, sight, images, mirror)
    if not folder.is_dir():
        try:
            root.mkdir(parents=True, exist_ok=True)
            with FileLock(root / f"{folder.name}.lock"):  # two trainings begun together must not build the same cache
                if not folder.is_dir():
                    _build(folder, sight, images, mirror, device, batch_size)
        except OSError as error:
            needed = _bytes(sight, images, mirror) / 1e9
            reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
            raise CaptioningError(
                f"{folder}: the feature cache ({needed:.1f} GB) cannot be written ({reason}); make room, or name "
                "another folder with --data.features"
            ) from None
    return Features(folder)


def _bytes(sight: "Sight", images: Sequence[Path], mirror: bool) -> int:
    rows, columns = sight.grid
    return (1 + mirror) * len(images) * rows * columns * sight.width * 2


def _build(
    folder: Path,
    sight: "Sight",
    images: Sequence[Path],
    mirror: bool,
    device: torch.device | str,
    batch_size: int,
) -> None:
    sight = sight.for_inference()
    unfinished = folder.with_name(folder.name + ".unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    annotations = _reserve(unfinished / "annotations.npy", sight, images, mirror)
    progress = unfinished / "progress"
    done = int(progress.read_text()) if progress.is_file() else 0
    with tqdm(total=len(images), initial=done, desc=f"features of {sight.settings['name']}", unit="picture") as bar:
        for pixels in _batches(images[done:], sight.transform, batch_size):
            with torch.inference_mode():
                for copy in range(1 + mirror):
                    seen = sight((pixels.flip(-1) if copy else pixels).to(device))  # (B, L, D)
                    annotations[copy, done : done + len(pixels)] = seen.to("cpu", torch.float16).numpy()
            done += len(pixels)
            bar.update(len(pixels))
            if done % (_SAVE_EVERY * batch_size) == 0:
                annotations.flush()
                _write(progress, str(done))
    annotations.flush()
    _write(unfinished / "pictures.txt", "\n".join(map(str, images)))
    progress.unlink(missing_ok=True)
    unfinished.replace(folder)


def _reserve(path: Path, sight: "Sight", images: Sequence[Path], mirror: bool) -> np.memmap:
    """The array, all its room taken at once: a full disk must be an error now, not a crash in the middle."""
    if path.is_file():
        return np.lib.format.open_memmap(path, mode="r+")
    rows, columns = sight.grid
    shape = (1 + mirror, len(images), rows * columns, sight.width)
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


def _batches(images: Sequence[Path], transform: Transform, size: int) -> Iterator[Tensor]:
    """Pixels (B, 3, side, side); the next batch is decoded while the CNN works on the last."""

    def load(some: Sequence[Path]) -> Tensor:
        return torch.stack([transform(open_image(image, transform.size)) for image in some])

    parts = [images[first : first + size] for first in range(0, len(images), size)]
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(load, parts[0]) if parts else None
        for following in [*parts[1:], None]:
            pixels = waiting.result() if waiting else None
            waiting = thread.submit(load, following) if following else None
            if pixels is not None:
                yield pixels


def _write(path: Path, text: str) -> None:
    """All of it or nothing."""
    half_written = path.with_name(path.name + ".new")
    half_written.write_text(text, encoding="utf-8")
    half_written.replace(path)
