"""Karpathy's JSON: ``{"images": [{"filename", "filepath"?, "split", "sentences": [{"raw", "tokens"}]}]}``.

The layout in which Flickr8k, Flickr30k and COCO are most often split and passed on, and in which drawn scenes are kept.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from captioning.datasets.records import Record, usable
from captioning.errors import CaptioningError

LAYOUT = "Karpathy's JSON: dataset.json or one dataset_*.json"
# COCO's "restval" pictures are commonly trained on: nobody validates on them.
_SPLITS = {"restval": "train"}
_OWN_FIELDS = frozenset(("filename", "filepath", "split", "sentences"))


def is_here(root: Path) -> bool:
    return any(root.glob("dataset*.json"))


def read(root: Path) -> list[Record]:
    """The records of a folder."""
    found = sorted(root.glob("dataset*.json"))
    if len(found) > 1 and found[0].name != "dataset.json":
        names = ", ".join(path.name for path in found)
        raise CaptioningError(f"{root}: has several caption files ({names}); keep one")
    path = found[0]
    try:
        records = list(_records(root, json.loads(path.read_text(encoding="utf-8"))["images"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CaptioningError(
            f"{path}: not a caption file in Karpathy's layout ({type(error).__name__}: {error}); see data/README.md"
        ) from None
    return usable(path, records)


def _records(root: Path, entries: list[dict]) -> Iterator[Record]:
    for entry in entries:
        captions = tuple(sentence.get("raw") or " ".join(sentence["tokens"]) for sentence in entry["sentences"])
        folder = root / entry.get("filepath", "")
        if not (folder / entry["filename"]).exists() and (root / "images" / entry["filename"]).exists():
            folder = root / "images"  # the Flickr sets' JSON names no folder, and nobody keeps 30,000 files in the root
        details = {name: value for name, value in entry.items() if name not in _OWN_FIELDS}
        yield Record(folder / entry["filename"], captions, _SPLITS.get(entry["split"], entry["split"]), details)
