"""The common record of all dataset readers, and the checks that they share."""

import dataclasses
import hashlib
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from captioning.preprocessing.box import Box
from captioning.utils.errors import CaptioningError

if TYPE_CHECKING:
    from captioning.datasets.synthetic.scene import Scene


class LabeledBox(NamedTuple):
    """An annotated object: its category or a phrase that describes it, and its box in fractions of the image."""

    label: str
    box: Box


@dataclasses.dataclass(frozen=True)
class Record:
    """An image with its captions, its split and the boxes of objects.

    Args:
        image_path: path of the image file.
        captions: reference captions, not tokenized.
        split: ``train``, ``val`` or ``test``.
        metadata: further fields of the source, such as image ids or the scene of a synthetic image.
        boxes: annotated objects; None if the image is not annotated, empty if it contains no object of the categories.
        dataset: name of the dataset in a mixture (see :mod:`captioning.datasets.mixture`).
    """

    image_path: Path
    captions: tuple[str, ...]
    split: str
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    boxes: tuple[LabeledBox, ...] | None = None
    dataset: str = ""

    @property
    def scene(self) -> "Scene | None":
        """The scene of a synthetic image; None for other images."""
        from captioning.datasets.synthetic.scene import Scene  # datasets.synthetic imports this module

        scene = self.metadata.get("scene")
        return None if scene is None else Scene.from_dict(scene)


def filter_usable(source: Path, records: Iterable[Record]) -> list[Record]:
    """Return the records that have an image file and captions. One warning reports the number of the others."""
    usable, without_file, without_captions = [], [], []
    for record in records:
        captions = tuple(caption.strip() for caption in record.captions if caption.strip())
        if not record.image_path.is_file():
            without_file.append(record)
        elif not captions:
            without_captions.append(record)
        else:
            usable.append(dataclasses.replace(record, captions=captions))
    skipped = (
        f"{_count(without_file)} without a file{_example(without_file)}, "
        f"{_count(without_captions)} without captions{_example(without_captions)}"
    )
    if not usable:
        raise CaptioningError(f"{source}: no usable image ({skipped}); data/README.md describes where images belong")
    if without_file or without_captions:
        warnings.warn(f"{source}: skipped {skipped}", stacklevel=2)
    return usable


def _count(records: Sequence[Record]) -> str:
    return f"{len(records)} image{'' if len(records) == 1 else 's'}"


def _example(records: Sequence[Record]) -> str:
    return f" (for example {records[0].image_path.name})" if records else ""


def hash_split(names: Iterable[str], max_held_out: int = 1000) -> dict[str, str]:
    """Assign a split to each image name of a dataset that defines none.

    ``val`` and ``test`` each receive a tenth of the images, at most ``max_held_out``. The order is that of the SHA-256
    hashes of the names, so the split is the same on every machine.
    """
    ordered = sorted(set(names), key=lambda name: hashlib.sha256(name.encode()).digest())
    held_out = min(max_held_out, max(1, len(ordered) // 10))
    return {
        name: "val" if rank < held_out else "test" if rank < 2 * held_out else "train"
        for rank, name in enumerate(ordered)
    }
