"""Datasets of captioned images. Each reader supports one directory layout and returns the same records."""

import os
from pathlib import Path

from captioning.datasets.readers import READERS, coco, karpathy
from captioning.datasets.readers.boxes import add_boxes
from captioning.datasets.readers.json_file import load_json
from captioning.datasets.record import Record
from captioning.utils.errors import CaptioningError


def resolve_root(root: Path) -> Path:
    """Return ``root`` if it exists, otherwise ``$CAPTIONING_DATA_DIR/root`` if that exists, otherwise ``root``."""
    data_dir = os.environ.get("CAPTIONING_DATA_DIR")
    return Path(data_dir) / root if data_dir and not root.exists() and (Path(data_dir) / root).exists() else root


def load_records(root: Path) -> list[Record]:
    """Read the records of a directory (or of a caption file) with the first reader that supports its layout.

    Records have boxes where the dataset contains them.
    """
    if not root.exists():
        raise CaptioningError(f"{root}: no such directory; check data.root and CAPTIONING_DATA_DIR")
    for reader in READERS:
        if reader.can_read(root):
            return add_boxes(root if root.is_dir() else root.parent, reader.read_records(root))
    layouts = "; ".join(reader.LAYOUT for reader in READERS)
    raise CaptioningError(f"{root}: no captions found, expected one of: {layouts}; data/README.md describes them")


def load_split(root: Path, split: str, num_images: int | None = None) -> list[Record]:
    """Return the first ``num_images`` records of a split. Raises CaptioningError if there are none."""
    if num_images is not None and num_images < 1:
        raise CaptioningError(f"--num-images must be >= 1, got {num_images}")
    records = [record for record in load_records(resolve_root(root)) if record.split == split]
    if not records:
        raise CaptioningError(f"{root}: no images in split '{split}'; 'captioning inspect-data' lists the splits")
    return records[:num_images]


def read_captions(path: Path) -> list[Record]:
    """Read the captions of one JSON file in Karpathy's or COCO's format; the image files need not exist."""
    content = load_json(path)
    reader = coco if isinstance(content, dict) and "annotations" in content else karpathy
    try:
        return reader.parse_captions(content)
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CaptioningError(f"{path}: not a caption file in Karpathy or COCO format ({reason})") from None
