"""Files of references and of predicted captions, in the formats that captioning systems use."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from captioning import datasets
from captioning.datasets.record import Record
from captioning.utils.errors import CaptioningError

_ID_FIELDS = ("image_id", "cocoid", "imgid", "id")
_FILE_FIELDS = ("image", "filename", "file_name", "file", "path")


class References(NamedTuple):
    """Reference captions of images. An image is identified by its file name and by each of its ids."""

    captions: list[list[str]]  # per image
    index_by_name: dict[str, int]  # index in ``captions`` by file name and by id
    train_captions: list[str]  # captions of the training split, if the source has one


def load_references(path: Path) -> References:
    """Load references: COCO annotations, Karpathy's JSON, a directory in any layout, or text with one line per image.

    A line of text has one reference, or several separated by tabs.
    """
    if path.suffix == ".txt" and path.is_file():
        captions = [[part for part in line.split("\t") if part.strip()] for line in _read_lines(path)]
        if not all(captions):
            raise CaptioningError(f"{path}, line {captions.index([]) + 1}: no reference; each line needs at least one")
        return References(captions, {str(index): index for index in range(len(captions))}, [])
    if path.suffix == ".json" and path.is_file():
        return _from_records(datasets.read_captions(path))
    return _from_records(datasets.load_records(datasets.resolve_root(path)))


def _from_records(records: Iterable[Record]) -> References:
    references = References([], {}, [])
    for record in records:
        if record.split == "train":
            references.train_captions.extend(record.captions)
        for name in _names({"file": record.image_path.name, **record.metadata}):
            references.index_by_name[name] = len(references.captions)
        references.captions.append(list(record.captions))
    return references


def load_predictions(path: Path) -> dict[str, str]:
    """Load captions of a system by image name or id.

    Formats: COCO results, Karpathy's JSON, the JSONL of ``captioning predict``, or text with one line per image.
    """
    if path.suffix == ".txt":
        return {str(index): line for index, line in enumerate(_read_lines(path))}
    entries = _read_json(path)
    if isinstance(entries, Mapping):
        entries = entries.get("images", [])
    captions: dict[str, str] = {}
    for number, entry in enumerate(entries, 1):
        names = _names(entry) if isinstance(entry, Mapping) else []
        caption = _caption_of(entry) if names else None
        if caption is None:
            raise CaptioningError(
                f'{path}, entry {number}: expected {{"image_id": 1, "caption": "a dog"}}, '
                'or "image" with a file name instead of "image_id"'
            )
        if names[0] in captions:
            raise CaptioningError(f"{path}, entry {number}: duplicate caption of image {names[0]}")
        captions[names[0]] = caption
    return captions


def _caption_of(entry: Mapping[str, Any]) -> str | None:
    """The caption of an entry, which may be empty; None if there is none."""
    caption = entry.get("caption", entry.get("sentence", entry.get("sentences")))
    if isinstance(caption, list) and caption:
        caption = caption[0]
    if isinstance(caption, Mapping):
        caption = caption.get("raw")
    return caption if isinstance(caption, str) else None


def _names(entry: Mapping[str, Any]) -> list[str]:
    files = [Path(entry[field]).name for field in _FILE_FIELDS if entry.get(field)]
    return files + [str(entry[field]) for field in _ID_FIELDS if entry.get(field) is not None]


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CaptioningError(f"{path}: cannot be read ({error})") from None


def _read_json(path: Path) -> Any:
    lines = _read_lines(path)
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in lines if line.strip()]
        return json.loads("\n".join(lines))
    except ValueError as error:
        raise CaptioningError(f"{path}: not JSON ({error})") from None
