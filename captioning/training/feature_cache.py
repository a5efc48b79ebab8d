"""Feature cache: features of a frozen encoder, or of its frozen blocks, computed once per image content and view.

Each extractor with its transform has a directory, whose name contains a fingerprint of both. It contains

- ``features.bin``: float16 in C order, one row (L, D) per key;
- ``keys.txt``: one line per row, the content hash of the image and the name of the view (see ``datasets/view.py``);
- ``meta.json``: the shape of a row, and a description of the extractor.

Rows are only appended, and before their keys, so an interrupted build continues where it stopped. An entry depends on
nothing but its key and the extractor: datasets, mixtures of them and runs share entries.
"""

import dataclasses
import errno
import hashlib
import json
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from tqdm import tqdm

from captioning.datasets.content_hash import hash_content
from captioning.datasets.view import ViewKey
from captioning.models.encoder import FeatureExtractor
from captioning.training.feature_extraction import ImageViews, extract_features
from captioning.utils.atomic_io import atomic_write
from captioning.utils.errors import CaptioningError

_FORMAT = 3  # to be increased if the views or the files change


class FeatureCache:
    """Features of one extractor for many images and views.

    Args:
        cache_dir: directory of the cache, with at least one entry.
    """

    def __init__(self, cache_dir: Path) -> None:
        self.cache_dir = cache_dir
        meta = json.loads((cache_dir / "meta.json").read_text(encoding="utf-8"))
        shape = (meta["num_locations"], meta["feature_size"])
        self._rows = {key: row for row, key in enumerate(_read_keys(cache_dir, _row_size(*shape)))}
        self.features = np.memmap(
            cache_dir / "features.bin", np.float16, mode="r", shape=(len(self._rows), *shape)
        )  # (N, L, D)

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._rows)

    def row(self, content_hash: str, view_key: ViewKey) -> int:
        """Return the row of an entry, which must exist."""
        return self._rows[f"{content_hash} {view_key}"]

    def load(self, rows: Sequence[int]) -> Tensor:
        """Features (B, L, D) of these rows, in float16."""
        return torch.from_numpy(self.features[np.asarray(rows, dtype=np.int64)])


def _row_size(num_locations: int, feature_size: int) -> int:
    return num_locations * feature_size * 2  # bytes


def _read_keys(cache_dir: Path, row_size: int) -> list[str]:
    """Keys of the complete entries: those with a whole line and a whole row."""
    keys_file, features_file = cache_dir / "keys.txt", cache_dir / "features.bin"
    if not (keys_file.is_file() and features_file.is_file()):
        return []
    *lines, _ = keys_file.read_text(encoding="ascii").split("\n")
    return lines[: features_file.stat().st_size // row_size]


def fingerprint(extractor: FeatureExtractor) -> str:
    """Hash of everything that the features depend on, besides the image and the view.

    Settings without a value do not enter, so that a further setting does not invalidate caches.
    """
    digest = hashlib.sha256()
    for name, tensor in extractor.state_dict().items():
        digest.update(name.partition(".")[2].encode())  # without the name of the attribute that holds the CNN
        positive_zeros = tensor.detach().cpu() + 0  # an average of equal weights changes -0.0 to 0.0
        digest.update(positive_zeros.contiguous().numpy().tobytes())
    digest.update(json.dumps(_description(extractor), sort_keys=True).encode())
    return digest.hexdigest()[:16]


def _description(extractor: FeatureExtractor) -> dict[str, Any]:
    in_transform = ("image_size", "resize_mode")
    config = {name: value for name, value in extractor.config.items() if value is not None and name not in in_transform}
    return {"format": _FORMAT, **config, "transform": dataclasses.asdict(extractor.transform)}


def cache_path(root: Path, extractor: FeatureExtractor) -> Path:
    """Directory of the cache below ``root``; it need not exist."""
    name = extractor.config["backbone"].replace("/", "-")
    return root / f"{name}-{extractor.transform.image_size}-{fingerprint(extractor)}"


def open_or_build(
    root: Path,
    extractor: FeatureExtractor,
    images: Sequence[tuple[Path, Sequence[ViewKey]]],
    device: torch.device | str = "cpu",
    batch_size: int = 32,
) -> FeatureCache:
    """Open the cache of an extractor. Features that it lacks are computed first, with a progress bar.

    Args:
        root: directory of all caches.
        extractor: the encoder or its frozen blocks, on ``device``.
        images: image files, each with the views whose features are required.
        device: device of the extractor.
        batch_size: approximate number of views that are encoded at a time.
    """
    cache_dir = cache_path(root, extractor)
    required = _merge_duplicates(images)
    row_size = _row_size(math.prod(extractor.grid_size), extractor.feature_size)
    if _find_missing(cache_dir, row_size, required):
        try:
            cache_dir.mkdir(parents=True, exist_ok=True)
            with FileLock(root / f"{cache_dir.name}.lock"):  # concurrent runs must not build the same cache
                # Another run may have computed them in the meantime.
                if missing := _find_missing(cache_dir, row_size, required):
                    _report_missing(cache_dir, missing, len(required), row_size)
                    _write_meta(cache_dir, extractor)
                    _append(cache_dir, row_size, extractor, missing, device, batch_size)
        except OSError as error:
            reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
            raise CaptioningError(
                f"{cache_dir}: the feature cache cannot be written ({reason}); free disk space, or set another "
                "data.feature_cache_dir"
            ) from None
    return FeatureCache(cache_dir)


def _merge_duplicates(images: Sequence[tuple[Path, Sequence[ViewKey]]]) -> list[ImageViews]:
    """Files with the same content share entries, and may differ in their views."""
    merged: dict[str, ImageViews] = {}
    for path, view_keys in images:
        image = ImageViews(path, hash_content(path), view_keys)
        known = merged.setdefault(image.content_hash, image)
        if known.view_keys != view_keys:
            view_keys = list(dict.fromkeys([*known.view_keys, *view_keys]))
            merged[image.content_hash] = known._replace(view_keys=view_keys)
    return list(merged.values())


def _find_missing(cache_dir: Path, row_size: int, images: Sequence[ImageViews]) -> list[ImageViews]:
    """The images with the views that are not in the cache."""
    keys = set(_read_keys(cache_dir, row_size))
    lacking = (
        image._replace(view_keys=[key for key in image.view_keys if f"{image.content_hash} {key}" not in keys])
        for image in images
    )
    return [image for image in lacking if image.view_keys]


def _report_missing(cache_dir: Path, missing: Sequence[ImageViews], num_images: int, row_size: int) -> None:
    """Print the size of what will be computed, and refuse it if the disk has less space."""
    num_views = sum(len(image.view_keys) for image in missing)
    size, free = num_views * row_size / 1e9, shutil.disk_usage(cache_dir).free / 1e9
    print(
        f"feature cache {cache_dir}: {len(missing)} of {num_images} images lack {num_views} views; "
        f"{size:.1f} GB will be added",
        file=sys.stderr,
    )
    if size > free:
        raise CaptioningError(
            f"{cache_dir}: the feature cache needs {size:.1f} GB more, but the disk has {free:.1f} GB free; "
            "free disk space, or set another data.feature_cache_dir"
        )


def _write_meta(cache_dir: Path, extractor: FeatureExtractor) -> None:
    row = {"num_locations": math.prod(extractor.grid_size), "feature_size": extractor.feature_size}
    with atomic_write(cache_dir / "meta.json") as temporary:
        temporary.write_text(json.dumps({**_description(extractor), **row}, indent=2) + "\n", encoding="utf-8")


def _append(
    cache_dir: Path,
    row_size: int,
    extractor: FeatureExtractor,
    missing: Sequence[ImageViews],
    device: torch.device | str,
    batch_size: int,
) -> None:
    """Compute and append the missing entries. What an interrupted build left incomplete is cut off first."""
    complete = _read_keys(cache_dir, row_size)
    description = f"features of {extractor.config['backbone']}"
    with (
        (cache_dir / "features.bin").open("ab") as features_file,
        (cache_dir / "keys.txt").open("ab") as keys_file,
        tqdm(total=len(missing), desc=description, unit="image") as bar,
    ):
        features_file.truncate(len(complete) * row_size)
        keys_file.truncate(sum(len(key) + 1 for key in complete))
        for images, features in extract_features(extractor, missing, device, batch_size):
            features_file.write(features.numpy().data)
            features_file.flush()
            lines = (f"{image.content_hash} {key}\n" for image in images for key in image.view_keys)
            keys_file.write("".join(lines).encode())
            keys_file.flush()
            bar.update(len(images))
