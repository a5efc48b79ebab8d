"""Karpathy's JSON: ``{"images": [{"filename", "filepath"?, "split", "sentences": [{"raw", "tokens"}]}]}``.

This is the usual format of Flickr8k, Flickr30k and COCO with Karpathy's splits. The synthetic dataset uses it too.
"""

import dataclasses
from pathlib import Path
from typing import Any

from captioning.datasets.readers.json_file import load_json
from captioning.datasets.record import Record, filter_usable
from captioning.datasets.synthetic import shapes
from captioning.utils.errors import CaptioningError

LAYOUT = "Karpathy's JSON: dataset.json or one dataset_*.json"
# By convention, models are trained on the "restval" images of COCO.
_SPLIT_ALIASES = {"restval": "train"}
_RECORD_FIELDS = frozenset(("filename", "filepath", "split", "sentences"))


def can_read(root: Path) -> bool:
    return any(root.glob("dataset*.json"))


def read_records(root: Path) -> list[Record]:
    """Read the records of a directory."""
    paths = sorted(root.glob("dataset*.json"))
    if len(paths) > 1 and paths[0].name != "dataset.json":
        names = ", ".join(path.name for path in paths)
        raise CaptioningError(f"{root}: several caption files ({names}), expected one; remove the others")
    path = paths[0]
    content = load_json(path)
    try:
        shapes.check_format(path, content)
        records = [_locate_image(root, record) for record in parse_captions(content)]
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CaptioningError(
            f"{path}: not a caption file in Karpathy's format ({reason}); data/README.md describes it"
        ) from None
    return filter_usable(path, records)


def parse_captions(content: Any) -> list[Record]:
    """Convert the content of a JSON file to records with image paths relative to the dataset root."""
    return [_parse_entry(entry) for entry in content["images"]]


def _parse_entry(entry: dict[str, Any]) -> Record:
    captions = tuple(sentence.get("raw") or " ".join(sentence["tokens"]) for sentence in entry["sentences"])
    image_path = Path(entry.get("filepath", ""), entry.get("filename", ""))
    split = entry.get("split", "")
    metadata = {name: value for name, value in entry.items() if name not in _RECORD_FIELDS}
    return Record(image_path, captions, _SPLIT_ALIASES.get(split, split), metadata)


def _locate_image(root: Path, record: Record) -> Record:
    if not record.image_path.name:
        raise KeyError("filename")
    if not record.split:
        raise KeyError("split")
    path = root / record.image_path
    # The Flickr files have no "filepath", but the images usually lie in a directory of their own.
    fallback = root / "images" / record.image_path.name
    return dataclasses.replace(record, image_path=fallback if not path.exists() and fallback.exists() else path)
