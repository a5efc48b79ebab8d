"""Custom datasets: a CSV, TSV or JSONL file of captions, or a directory with ``name.txt`` beside ``name.jpg``."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from captioning.datasets.record import Record, filter_usable, hash_split
from captioning.preprocessing.find_images import IMAGE_SUFFIXES
from captioning.utils.errors import CaptioningError

LAYOUT = "custom: captions.csv, captions.tsv or captions.jsonl (or the path of the file), or name.txt beside name.jpg"
_FILE_NAMES = tuple(f"captions.{suffix}" for suffix in ("csv", "tsv", "jsonl"))
_IMAGE_FIELDS = ("image", "file", "filename", "file_name", "path", "picture")
_SPLIT_ALIASES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
}


class _Row(NamedTuple):
    position: str  # file and line, for error messages
    image: str
    captions: list[str]
    split: str


def can_read(root: Path) -> bool:
    return _find_caption_file(root) is not None or any(_image_text_pairs(root))


def read_records(root: Path) -> list[Record]:
    """Read the records of a file or directory. If the file has no splits, they are derived from hashes of the names."""
    path = _find_caption_file(root)
    return _read_pairs(root) if path is None else _read_caption_file(path)


def _read_pairs(root: Path) -> list[Record]:
    pairs = {image: tuple(_read_text(text).splitlines()) for image, text in _image_text_pairs(root)}
    splits = hash_split(str(image.relative_to(root)) for image in pairs)
    records = (Record(image, captions, splits[str(image.relative_to(root))]) for image, captions in pairs.items())
    return filter_usable(root, records)


def _read_caption_file(path: Path) -> list[Record]:
    captions: dict[str, list[str]] = {}
    given_splits: dict[str, str] = {}
    for row in _parse_rows(path):
        captions.setdefault(row.image, []).extend(row.captions)
        if row.split:
            if row.split not in _SPLIT_ALIASES:
                raise CaptioningError(f"{row.position}: unknown split '{row.split}'; use train, val or test")
            given_splits[row.image] = _SPLIT_ALIASES[row.split]
    splits = given_splits or hash_split(captions)
    return filter_usable(
        path,
        (
            Record(_image_path(path.parent, name), tuple(image_captions), splits.get(name, "train"))
            for name, image_captions in captions.items()
        ),
    )


def _find_caption_file(root: Path) -> Path | None:
    if root.is_file():
        return root if root.suffix.lower() in (".csv", ".tsv", ".jsonl") else None
    return next((root / name for name in _FILE_NAMES if (root / name).is_file()), None)


def _image_text_pairs(root: Path) -> Iterator[tuple[Path, Path]]:
    if root.is_dir():
        for image in sorted(root.rglob("*")):
            if image.suffix.lower() in IMAGE_SUFFIXES and image.with_suffix(".txt").is_file():
                yield image, image.with_suffix(".txt")


def _image_path(root: Path, name: str) -> Path:
    return next((path for path in (root / name, root / "images" / name) if path.is_file()), root / name)


def _parse_rows(path: Path) -> Iterator[_Row]:
    return _parse_jsonl(path) if path.suffix.lower() == ".jsonl" else _parse_table(path)


def _parse_jsonl(path: Path) -> Iterator[_Row]:
    for line_number, line in enumerate(_read_text(path).splitlines(), 1):
        position = f"{path}, line {line_number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise CaptioningError(f"{position}: not JSON ({error}); correct the line") from None
        if not isinstance(row, dict):
            raise CaptioningError(f'{position}: expected an object such as {{"image": …, "captions": […]}}')
        yield _parse_row(position, row)


def _parse_table(path: Path) -> Iterator[_Row]:
    text = _read_text(path)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=_delimiter(path, text))
    try:
        for row in rows:
            position = f"{path}, line {rows.line_num}"
            if None in row:
                raise CaptioningError(f"{position}: more fields than the header; put quotes around captions")
            yield _parse_row(position, row)
    except csv.Error as error:
        raise CaptioningError(f"{path}, line {rows.line_num}: {error}; check the quotes") from None


def _delimiter(path: Path, text: str) -> str:
    """Return the delimiter: a tab for TSV; for CSV a semicolon if the header has more of them than commas.

    Otherwise it is a comma. Spreadsheets write semicolons in countries where the comma is the decimal mark.
    """
    if path.suffix.lower() == ".tsv":
        return "\t"
    header = text.partition("\n")[0]
    return ";" if header.count(";") > header.count(",") else ","


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CaptioningError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def _parse_row(position: str, row: Mapping[str, Any]) -> _Row:
    fields = {str(name).strip().lower(): value for name, value in row.items() if value is not None}
    image = next((fields[field] for field in _IMAGE_FIELDS if fields.get(field)), None)
    if not isinstance(image, str):
        raise CaptioningError(f"{position}: no image field; name it one of {', '.join(_IMAGE_FIELDS)}")
    caption_fields = [field for field in fields if field.startswith("caption")]  # caption, captions, caption_1, …
    if not caption_fields:
        raise CaptioningError(f"{position}: no caption field; name it 'caption', 'captions' or 'caption_1', …")
    captions: list[str] = []
    for field in caption_fields:
        captions += [fields[field]] if isinstance(fields[field], str) else fields[field]
    if not all(isinstance(caption, str) for caption in captions):
        raise CaptioningError(f"{position}: captions must be a string or a list of strings")
    return _Row(position, image, captions, str(fields.get("split", "")).strip().lower())
