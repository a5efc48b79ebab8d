"""COCO captions of 2014 and 2017: ``annotations/captions_train2014.json`` and the like, beside ``train2014/``."""

import json
from collections.abc import Iterator
from pathlib import Path

from captioning.datasets.records import Record, usable
from captioning.errors import CaptioningError

LAYOUT = "COCO: annotations/captions_{train,val}{2014,2017}.json beside train2014/, val2014/ and so on"


def is_here(root: Path) -> bool:
    return bool(_files(root))


def read(root: Path) -> list[Record]:
    """The records of a folder. The captions of COCO's own test split are secret: Karpathy's JSON has another."""
    files = _files(root)
    years = {path.stem[-4:] for path in files}
    if len(years) > 1:
        raise CaptioningError(
            f"{root}: holds captions of {' and '.join(sorted(years))}, mostly of the same pictures; keep one"
        )
    return usable(files[0].parent, [record for path in files for record in _records(root, path)])


def _files(root: Path) -> list[Path]:
    folder = root / "annotations" if (root / "annotations").is_dir() else root
    return sorted(path for split in ("train", "val") for path in folder.glob(f"captions_{split}20*.json"))


def _records(root: Path, path: Path) -> Iterator[Record]:
    name = path.stem.removeprefix("captions_")  # "train2014"
    folder = root / "images" / name if (root / "images" / name).is_dir() else root / name
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        captions: dict[int, list[str]] = {image["id"]: [] for image in content["images"]}
        for annotation in content["annotations"]:
            captions[annotation["image_id"]].append(annotation["caption"])
        for image in content["images"]:
            yield Record(folder / image["file_name"], tuple(captions[image["id"]]), name[:-4], {"cocoid": image["id"]})
    except (ValueError, KeyError, TypeError) as error:
        raise CaptioningError(f"{path}: not COCO's captions ({type(error).__name__}: {error})") from None
