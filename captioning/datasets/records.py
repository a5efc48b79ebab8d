"""What every source of captioned pictures gives, and what all of them check alike."""

import dataclasses
import hashlib
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from captioning.errors import CaptioningError


@dataclasses.dataclass(frozen=True)
class Record:
    """A picture, its captions, and its split (``train``, ``val`` or ``test``).

    ``details`` keeps what else the source knows of the picture; drawn scenes keep their objects there.
    """

    image: Path
    captions: tuple[str, ...]
    split: str
    details: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)


def usable(source: Path, records: Iterable[Record]) -> list[Record]:
    """Those whose picture is there and has captions; the others are passed over, with one warning that counts them."""
    kept, missing, silent = [], [], []
    for record in records:
        captions = tuple(caption.strip() for caption in record.captions if caption.strip())
        if not record.image.is_file():
            missing.append(record)
        elif not captions:
            silent.append(record)
        else:
            kept.append(dataclasses.replace(record, captions=captions))
    counts = (
        f"{_count(missing, 'captioned picture')} missing{_first(missing)}, "
        f"{_count(silent, 'picture')} without captions{_first(silent)}"
    )
    if not kept:
        raise CaptioningError(f"{source}: no picture can be used ({counts}); see data/README.md for where pictures go")
    if missing or silent:
        warnings.warn(f"{source}: passed over {counts}", stacklevel=2)
    return kept


def _count(records: Sequence[Record], what: str) -> str:
    return f"{len(records)} {what}{'' if len(records) == 1 else 's'}"


def _first(records: Sequence[Record]) -> str:
    return f" (such as {records[0].image.name})" if records else ""


def split_by_name(names: Iterable[str], held_out: int = 1000) -> dict[str, str]:
    """A split for each name where a source has none: a tenth each, but no more than ``held_out``, for val and test.

    It follows from the names alone, so it is the same on every machine.
    """
    order = sorted(set(names), key=lambda name: hashlib.sha256(name.encode()).digest())
    size = min(held_out, max(1, len(order) // 10))
    return {
        name: "val" if place < size else "test" if place < 2 * size else "train" for place, name in enumerate(order)
    }
