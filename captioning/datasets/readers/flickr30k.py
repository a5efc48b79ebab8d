"""Flickr30k: ``results_20130124.token``, or Kaggle's ``results.csv`` with fields separated by ``|``."""

from pathlib import Path

from captioning.datasets.readers.flickr8k import find_image_dir, read_token_file
from captioning.datasets.record import Record, filter_usable, hash_split
from captioning.utils.errors import CaptioningError

LAYOUT = "Flickr30k: results_20130124.token or results.csv, and flickr30k_images/"
_IMAGE_DIRS = ("flickr30k_images", "flickr30k-images", "Images", "images")
_HEADER = ["image_name", "comment_number", "comment"]


def can_read(root: Path) -> bool:
    return bool(_find_caption_files(root))


def read_records(root: Path) -> list[Record]:
    """Read the records of a directory. The split is a hash of the image name; Karpathy's JSON has the usual splits."""
    path = _find_caption_files(root)[0]
    captions = read_token_file(path) if path.suffix == ".token" else _read_kaggle_file(path)
    image_dir, splits = find_image_dir(root, _IMAGE_DIRS), hash_split(captions)
    records = (Record(image_dir / name, image_captions, splits[name]) for name, image_captions in captions.items())
    return filter_usable(path, records)


def _find_caption_files(root: Path) -> list[Path]:
    names = ("results_20130124.token", "results.csv", "flickr30k_images/results.csv")
    return [root / name for name in names if (root / name).is_file()]


def _read_kaggle_file(path: Path) -> dict[str, tuple[str, ...]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or [field.strip() for field in lines[0].split("|")] != _HEADER:
        raise CaptioningError(f"{path}: expected the first line '{'| '.join(_HEADER)}'; download the file again")
    captions: dict[str, list[str]] = {}
    for line_number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        name, _, rest = line.partition("|")
        # One line of the published file lacks its second bar: a space separates number and caption there.
        number, bar, caption = rest.partition("|")
        if not bar:
            number, _, caption = rest.strip().partition(" ")
        if not number.strip().isdigit() or not caption.strip():
            raise CaptioningError(
                f"{path}, line {line_number}: expected 'image.jpg| 0| caption', got '{line[:60]}'; correct the line"
            )
        captions.setdefault(name.strip(), []).append(caption.strip())
    return {name: tuple(image_captions) for name, image_captions in captions.items()}
