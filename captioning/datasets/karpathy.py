"""Karpathy's JSON: ``{"images": [{"filename", "filepath"?, "split", "sentences": [{"raw", "tokens"}]}]}``.

The layout in which Flickr8k, Flickr30k and COCO are most often split and passed on, and in which drawn scenes are kept.
"""

import json
import warnings
from pathlib import Path

from captioning.datasets.records import Record
from captioning.errors import CaptioningError

# COCO's "restval" pictures are commonly trained on: nobody validates on them.
_SPLITS = {"restval": "train"}
_OWN_FIELDS = frozenset(("filename", "filepath", "split", "sentences"))


def find(root: Path) -> Path:
    """The JSON file in a folder: ``dataset.json``, or the only ``dataset_*.json``."""
    if not root.is_dir():
        raise CaptioningError(f"{root}: no such folder of captioned pictures; check data.root")
    found = sorted(root.glob("dataset*.json"))
    if not found:
        raise CaptioningError(f"{root}: has no dataset.json in Karpathy's layout; see data/README.md")
    if len(found) > 1 and found[0].name != "dataset.json":
        names = ", ".join(path.name for path in found)
        raise CaptioningError(f"{root}: has several caption files ({names}); keep one")
    return found[0]


def read(root: Path) -> list[Record]:
    """The records of a folder. Pictures that are missing and pictures without captions are passed over, and counted."""
    path = find(root)
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["images"]
        records, missing, silent = [], 0, 0
        for entry in entries:
            sentences = entry["sentences"]
            captions = tuple(sentence.get("raw") or " ".join(sentence["tokens"]) for sentence in sentences)
            image = root / entry.get("filepath", "") / entry["filename"]
            if not image.is_file():
                missing += 1
            elif not captions:
                silent += 1
            else:
                details = {name: value for name, value in entry.items() if name not in _OWN_FIELDS}
                split = _SPLITS.get(entry["split"], entry["split"])
                records.append(Record(image, captions, split, details))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CaptioningError(
            f"{path}: not a caption file in Karpathy's layout ({type(error).__name__}: {error}); see data/README.md"
        ) from None
    if not records:
        raise CaptioningError(
            f"{path}: none of its {len(entries)} pictures can be used ({missing} missing, {silent} without captions); "
            f"put the pictures under {root}"
        )
    if missing or silent:
        warnings.warn(
            f"{path}: passed over {missing} pictures that are missing and {silent} without captions", stacklevel=2
        )
    return records
