"""Pictures of one's own: a CSV, TSV or JSONL file of captions, or a folder with ``name.jpg`` beside ``name.txt``."""

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from captioning.datasets.records import Record, split_by_name, usable
from captioning.errors import CaptioningError
from captioning.images import IMAGE_SUFFIXES

LAYOUT = "your own: captions.csv, captions.tsv or captions.jsonl (or name the file itself), or name.jpg beside name.txt"
_NAMES = tuple(f"captions.{suffix}" for suffix in ("csv", "tsv", "jsonl"))
_PICTURE_FIELDS = ("image", "file", "filename", "file_name", "path", "picture")
_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
}


def is_here(root: Path) -> bool:
    return _table(root) is not None or any(_pairs(root))


def read(root: Path) -> list[Record]:
    """The records of a file or folder. A picture whose split is not told gets one by its name."""
    table = _table(root)
    if table is None:
        pairs = {picture: tuple(text.read_text(encoding="utf-8").splitlines()) for picture, text in _pairs(root)}
        splits = split_by_name(str(picture.relative_to(root)) for picture in pairs)
        return usable(
            root, (Record(picture, said, splits[str(picture.relative_to(root))]) for picture, said in pairs.items())
        )
    captions: dict[str, list[str]] = {}
    told: dict[str, str] = {}
    for place, name, said, split in _rows(table):
        captions.setdefault(name, []).extend(said)
        if split:
            if split not in _SPLITS:
                raise CaptioningError(f"{place}: unknown split '{split}'; take train, val or test")
            told[name] = _SPLITS[split]
    by_name = split_by_name(captions) if not told else {}
    folder = table.parent
    return usable(
        table,
        (
            Record(_picture(folder, name), tuple(said), told.get(name) or by_name.get(name, "train"))
            for name, said in captions.items()
        ),
    )


def _table(root: Path) -> Path | None:
    if root.is_file():
        return root if root.suffix.lower() in (".csv", ".tsv", ".jsonl") else None
    return next((root / name for name in _NAMES if (root / name).is_file()), None)


def _pairs(root: Path) -> Iterator[tuple[Path, Path]]:
    if root.is_dir():
        for picture in sorted(root.rglob("*")):
            if picture.suffix.lower() in IMAGE_SUFFIXES and picture.with_suffix(".txt").is_file():
                yield picture, picture.with_suffix(".txt")


def _picture(folder: Path, name: str) -> Path:
    return next((path for path in (folder / name, folder / "images" / name) if path.is_file()), folder / name)


def _rows(table: Path) -> Iterator[tuple[str, str, list[str], str]]:
    """Where it stands, the picture, its captions and its split, of each row."""
    if table.suffix.lower() == ".jsonl":
        for number, line in enumerate(table.read_text(encoding="utf-8").splitlines(), 1):
            place = f"{table}, line {number}"
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise CaptioningError(f"{place}: not JSON ({error})") from None
                if not isinstance(row, dict):
                    raise CaptioningError(f'{place}: expected an object such as {{"image": …, "captions": […]}}')
                yield place, *_fields(place, row)
        return
    with table.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t" if table.suffix.lower() == ".tsv" else ",")
        for row in rows:
            place = f"{table}, line {rows.line_num}"
            if None in row:
                raise CaptioningError(f"{place}: more fields than the first line names; put quotes around captions")
            yield place, *_fields(place, row)


def _fields(place: str, row: Mapping[str, Any]) -> tuple[str, list[str], str]:
    fields = {str(name).strip().lower(): value for name, value in row.items() if value is not None}
    name = next((fields[field] for field in _PICTURE_FIELDS if fields.get(field)), None)
    if not isinstance(name, str):
        raise CaptioningError(f"{place}: names no picture; call that field one of {', '.join(_PICTURE_FIELDS)}")
    said: list[str] = []
    for field, value in fields.items():
        if field.startswith("caption"):  # caption, captions, caption_1, caption 2 …
            said += [value] if isinstance(value, str) else value
    if not any(field.startswith("caption") for field in fields):
        raise CaptioningError(f"{place}: has no field 'caption', 'captions' or 'caption_1' …")
    if not all(isinstance(caption, str) for caption in said):
        raise CaptioningError(f"{place}: captions must be text or a list of texts")
    return name, said, str(fields.get("split", "")).strip().lower()
