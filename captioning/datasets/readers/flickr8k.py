"""Flickr8k: the original layout (``Flickr8k.token.txt`` and lists of splits) or Kaggle's (``captions.txt``)."""

import csv
from collections.abc import Iterable
from pathlib import Path

from captioning.datasets.record import Record, filter_usable, hash_split
from captioning.utils.errors import CaptioningError

LAYOUT = "Flickr8k: Flickr8k.token.txt and Flickr_8k.*Images.txt, or Kaggle's captions.txt and Images/"
_SPLIT_FILES = {
    "train": "Flickr_8k.trainImages.txt",
    "val": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}
# The spelling of the archive, its common correction, and Kaggle's name.
_IMAGE_DIRS = ("Flicker8k_Dataset", "Flickr8k_Dataset", "Images", "images")


def can_read(root: Path) -> bool:
    return (root / "Flickr8k.token.txt").is_file() or (root / "captions.txt").is_file()


def read_records(root: Path) -> list[Record]:
    """Read the records of a directory. Without lists of splits, the split is a hash of the image name."""
    original = root / "Flickr8k.token.txt"
    path = original if original.is_file() else root / "captions.txt"
    captions = read_token_file(path) if path is original else _read_kaggle_file(path)
    image_dir = find_image_dir(root, _IMAGE_DIRS)
    splits = _read_splits(root) or hash_split(captions)
    # Images that no list names are excluded; captions without an image file are kept for the warning.
    return filter_usable(
        path,
        (
            Record(image_dir / name, image_captions, splits.get(name, "train"))
            for name, image_captions in captions.items()
            if name in splits or not (image_dir / name).is_file()
        ),
    )


def read_token_file(path: Path) -> dict[str, tuple[str, ...]]:
    """Read lines of ``name.jpg#0<tab>caption``, the format of Flickr8k and Flickr30k."""
    captions: dict[str, list[str]] = {}
    for line_number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        name, tab, caption = line.partition("\t")
        image, separator, _ = name.rpartition("#")
        if not tab or not separator:
            raise CaptioningError(
                f"{path}, line {line_number}: expected 'image.jpg#0<tab>caption', got '{line[:60]}'; correct the line"
            )
        captions.setdefault(image, []).append(caption)
    return _to_tuples(captions)


def _read_kaggle_file(path: Path) -> dict[str, tuple[str, ...]]:
    captions: dict[str, list[str]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        if next(rows, None) != ["image", "caption"]:
            raise CaptioningError(f"{path}: expected the first line 'image,caption'; data/README.md describes the file")
        for row in rows:
            if len(row) != 2:
                raise CaptioningError(
                    f"{path}, line {rows.line_num}: expected 'image,caption', got {len(row)} fields; quote the caption"
                )
            captions.setdefault(row[0], []).append(row[1])
    return _to_tuples(captions)


def find_image_dir(root: Path, names: Iterable[str]) -> Path:
    """Return the first existing directory of ``names``, which archives may nest, otherwise ``root``."""
    for name in names:
        for directory in (root / name / name, root / name):
            if directory.is_dir():
                return directory
    return root


def _read_splits(root: Path) -> dict[str, str]:
    paths = {split: root / name for split, name in _SPLIT_FILES.items() if (root / name).is_file()}
    return {name: split for split, path in paths.items() for name in path.read_text(encoding="utf-8").split()}


def _to_tuples(captions: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(image_captions) for name, image_captions in captions.items()}
