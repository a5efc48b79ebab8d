"""Flickr8k, in its original layout (``Flickr8k.token.txt`` and lists of splits) or in Kaggle's (``captions.txt``)."""

import csv
from collections.abc import Iterable
from pathlib import Path

from captioning.datasets.records import Record, split_by_name, usable
from captioning.errors import CaptioningError

LAYOUT = "Flickr8k: Flickr8k.token.txt and Flickr_8k.*Images.txt, or Kaggle's captions.txt and Images/"
_LISTS = {"train": "Flickr_8k.trainImages.txt", "val": "Flickr_8k.devImages.txt", "test": "Flickr_8k.testImages.txt"}
# The archive's own spelling, the spelling that people correct it to, and Kaggle's.
_FOLDERS = ("Flicker8k_Dataset", "Flickr8k_Dataset", "Images", "images")


def is_here(root: Path) -> bool:
    return (root / "Flickr8k.token.txt").is_file() or (root / "captions.txt").is_file()


def read(root: Path) -> list[Record]:
    """The records of a folder; without lists of splits the names of the pictures decide."""
    original = root / "Flickr8k.token.txt"
    path = original if original.is_file() else root / "captions.txt"
    captions = read_tokens(path) if path is original else _read_kaggle(path)
    folder = picture_folder(root, _FOLDERS)
    splits = _splits(root) or split_by_name(captions)
    # Pictures that the authors put into no split belong to none.
    chosen = {name: said for name, said in captions.items() if name in splits or not (folder / name).is_file()}
    return usable(path, (Record(folder / name, said, splits.get(name, "train")) for name, said in chosen.items()))


def read_tokens(path: Path) -> dict[str, tuple[str, ...]]:
    """Lines of ``name.jpg#0<tab>caption``; Flickr30k has the same."""
    captions: dict[str, list[str]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        name, tab, caption = line.partition("\t")
        image, mark, _ = name.rpartition("#")
        if not tab or not mark:
            raise CaptioningError(f"{path}, line {number}: expected 'picture.jpg#0<tab>caption', found '{line[:60]}'")
        captions.setdefault(image, []).append(caption)
    return _frozen(captions)


def _read_kaggle(path: Path) -> dict[str, tuple[str, ...]]:
    captions: dict[str, list[str]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        if next(rows, None) != ["image", "caption"]:
            raise CaptioningError(f"{path}: expected Kaggle's first line 'image,caption'; see data/README.md")
        for row in rows:
            if len(row) != 2:
                raise CaptioningError(
                    f"{path}, line {rows.line_num}: expected 'image,caption', found {len(row)} fields"
                )
            captions.setdefault(row[0], []).append(row[1])
    return _frozen(captions)


def picture_folder(root: Path, names: Iterable[str]) -> Path:
    """The first of the folders that exists; the root itself if none does. Archives nest them."""
    for name in names:
        for folder in (root / name / name, root / name):
            if folder.is_dir():
                return folder
    return root


def _splits(root: Path) -> dict[str, str]:
    lists = {split: root / name for split, name in _LISTS.items() if (root / name).is_file()}
    return {name: split for split, path in lists.items() for name in path.read_text(encoding="utf-8").split()}


def _frozen(captions: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(said) for name, said in captions.items()}
