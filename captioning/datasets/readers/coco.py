"""COCO captions of 2014 and 2017: ``annotations/captions_train2014.json`` etc. beside ``train2014/`` etc."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captioning.datasets.readers.json_file import load_json
from captioning.datasets.record import Record, filter_usable
from captioning.utils.errors import CaptioningError

LAYOUT = "COCO: annotations/captions_{train,val}{2014,2017}.json beside train2014/, val2014/ etc."


def can_read(root: Path) -> bool:
    return bool(_find_caption_files(root))


def read_records(root: Path) -> list[Record]:
    """Read the records of a directory. There is no ``test`` split, since COCO does not publish its captions."""
    paths = _find_caption_files(root)
    years = {path.stem[-4:] for path in paths}
    if len(years) > 1:
        raise CaptioningError(
            f"{root}: captions of {' and '.join(sorted(years))}, which share most images; remove one of them"
        )
    return filter_usable(paths[0].parent, [record for path in paths for record in _read_split(root, path)])


def parse_captions(content: Any) -> list[Record]:
    """Convert the content of an annotation file to records without a split, for the images that have captions.

    The image path is the file name, or empty if the file lists no images.
    """
    file_names = {image["id"]: image.get("file_name") or "" for image in content.get("images", [])}
    captions: dict[int, list[str]] = {}
    for annotation in content["annotations"]:
        captions.setdefault(annotation["image_id"], []).append(annotation["caption"])
    return [
        Record(Path(file_names.get(image_id, "")), tuple(image_captions), "", {"cocoid": image_id})
        for image_id, image_captions in captions.items()
    ]


def _find_caption_files(root: Path) -> list[Path]:
    directory = root / "annotations" if (root / "annotations").is_dir() else root
    return sorted(path for split in ("train", "val") for path in directory.glob(f"captions_{split}20*.json"))


def _read_split(root: Path, path: Path) -> Iterator[Record]:
    name = path.stem.removeprefix("captions_")  # "train2014"
    image_dir = root / "images" / name if (root / "images" / name).is_dir() else root / name
    content = load_json(path)
    try:
        captions: dict[int, list[str]] = {image["id"]: [] for image in content["images"]}
        for annotation in content["annotations"]:
            captions[annotation["image_id"]].append(annotation["caption"])
        for image in content["images"]:
            image_path = image_dir / image["file_name"]
            yield Record(image_path, tuple(captions[image["id"]]), name[:-4], {"cocoid": image["id"]})
    except (KeyError, TypeError) as error:
        raise CaptioningError(
            f"{path}: not a COCO caption file ({type(error).__name__}: {error}); download it again"
        ) from None
