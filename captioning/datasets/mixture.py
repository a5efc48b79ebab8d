"""Mixtures: several datasets that are read as one."""

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path

from captioning.datasets import load_records, resolve_root
from captioning.datasets.boxes import hold_out_boxes
from captioning.datasets.content_hash import hash_content
from captioning.datasets.record import Record
from captioning.utils.errors import CaptioningError


@dataclasses.dataclass(frozen=True)
class DatasetConfig:
    """A dataset of a mixture.

    Args:
        root: directory in any layout of data/README.md, or its name below ``$CAPTIONING_DATA_DIR``.
        name: name in logged metrics; null for the last component of ``root``.
        weight: times that each training image is used per epoch. 0.5 draws a random half in each epoch.
        held_out_boxes: number of training images with boxes to move to the split ``test``, to measure attention maps.
        augment: also train on the flipped and cropped views that ``data.hflip`` and ``data.num_crops`` define. False
            saves the space of their features for a dataset that is large enough without them.
    """

    root: Path
    name: str | None = None
    weight: float = 1.0
    held_out_boxes: int = 0
    augment: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise CaptioningError(f"data.root: weight of {self.root} must be > 0, got {self.weight}")
        if self.held_out_boxes < 0:
            raise CaptioningError(f"data.root: held_out_boxes of {self.root} must be >= 0, got {self.held_out_boxes}")
        if self.label in ("", ".", "..") or "/" in self.label:
            raise CaptioningError(f"data.root: '{self.label}' cannot name a dataset in metrics; set another name")

    @property
    def label(self) -> str:
        """``name`` or its default."""
        return Path(self.root).resolve().name if self.name is None else self.name


def load_mixture(configs: Sequence[DatasetConfig]) -> list[Record]:
    """Read datasets one after the other. ``Record.dataset`` is the name of the set.

    Training images of one set that have the same content as a validation or test image of another are dropped.
    """
    labels = [config.label for config in configs]
    if repeated := sorted({label for label in labels if labels.count(label) > 1}):
        raise CaptioningError(f"data.root: several datasets are called '{repeated[0]}'; give them different names")
    records = [
        dataclasses.replace(record, dataset=config.label)
        for config in configs
        for record in hold_out_boxes(load_records(resolve_root(Path(config.root))), config.held_out_boxes)
    ]
    return _drop_leaks(records) if len(configs) > 1 else records


def _drop_leaks(records: Sequence[Record]) -> list[Record]:
    """Drop training images whose content is in the validation or test split of another set."""
    evaluated = [record for record in records if record.split != "train"]
    names_by_hash: dict[str, set[str]] = {}
    for record in evaluated:
        names_by_hash.setdefault(hash_content(record.image_path), set()).add(record.dataset)
    sizes = {record.image_path.stat().st_size for record in evaluated}  # only files of equal size need to be read

    def is_leak(record: Record) -> bool:
        if record.split != "train" or record.image_path.stat().st_size not in sizes:
            return False
        return bool(names_by_hash.get(hash_content(record.image_path), set()) - {record.dataset})

    kept = [record for record in records if not is_leak(record)]
    if num_dropped := len(records) - len(kept):
        warnings.warn(
            f"data.root: dropped {num_dropped} training images that are validation or test images of another dataset",
            stacklevel=2,
        )
    return kept
