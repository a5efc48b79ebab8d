"""Flickr30k: ``results_20130124.token``, or as Kaggle has it, ``results.csv`` with fields between bars."""

from pathlib import Path

from captioning.datasets.flickr8k import picture_folder, read_tokens
from captioning.datasets.records import Record, split_by_name, usable
from captioning.errors import CaptioningError

LAYOUT = "Flickr30k: results_20130124.token or results.csv, and flickr30k_images/"
_FOLDERS = ("flickr30k_images", "flickr30k-images", "Images", "images")


def is_here(root: Path) -> bool:
    return bool(_files(root))


def read(root: Path) -> list[Record]:
    """The records of a folder. The set has no splits: names decide (the usual ones are in Karpathy's JSON)."""
    path = _files(root)[0]
    captions = read_tokens(path) if path.suffix == ".token" else _read_table(path)
    folder, splits = picture_folder(root, _FOLDERS), split_by_name(captions)
    return usable(path, (Record(folder / name, said, splits[name]) for name, said in captions.items()))


def _files(root: Path) -> list[Path]:
    names = ("results_20130124.token", "results.csv", "flickr30k_images/results.csv")
    return [root / name for name in names if (root / name).is_file()]


def _read_table(path: Path) -> dict[str, tuple[str, ...]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or [field.strip() for field in lines[0].split("|")] != ["image_name", "comment_number", "comment"]:
        raise CaptioningError(f"{path}: expected the first line 'image_name| comment_number| comment'")
    captions: dict[str, list[str]] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        name, _, rest = line.partition("|")
        # One line of the published file lacks its second bar: the caption then stands behind the number.
        digits, bar, caption = rest.partition("|")
        if not bar:
            digits, _, caption = rest.strip().partition(" ")
        if not digits.strip().isdigit() or not caption.strip():
            raise CaptioningError(f"{path}, line {number}: expected 'picture.jpg| 0| caption', found '{line[:60]}'")
        captions.setdefault(name.strip(), []).append(caption.strip())
    return {name: tuple(said) for name, said in captions.items()}
