"""Readers of object boxes that lie beside the captions: COCO instances, PASCAL VOC, Flickr30k Entities, scenes."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from captioning.datasets.readers.json_file import load_json
from captioning.datasets.record import LabeledBox, Record
from captioning.preprocessing.box import Box
from captioning.utils.errors import CaptioningError

BoxLookup = Callable[[Record], "tuple[LabeledBox, ...] | None"]

_ENTITY = re.compile(r"\[/EN#(\d+)(?:/\w+)+ ([^]]+)\]")  # "[/EN#283585/people A young boy]"


def add_boxes(root: Path, records: Sequence[Record]) -> list[Record]:
    """Return the records with the boxes that the dataset contains; images that it does not annotate keep None.

    Args:
        root: directory of the dataset. Boxes are found by the file name of the image in
            ``annotations/instances_*.json`` (COCO), or by its stem in ``Annotations/*.xml`` (PASCAL VOC; Flickr30k
            Entities if ``Sentences/*.txt`` contains the phrases). Synthetic images have the boxes of their scene.
        records: records of the dataset.
    """
    lookups = [_scene_boxes, *_open_coco(root), *_open_xml(root)]
    return [_add_first(record, lookups) for record in records]


def _add_first(record: Record, lookups: Sequence[BoxLookup]) -> Record:
    found = (boxes for lookup in lookups if (boxes := lookup(record)) is not None)
    boxes = next(found, None)
    return record if boxes is None else dataclasses.replace(record, boxes=boxes)


def _scene_boxes(record: Record) -> tuple[LabeledBox, ...] | None:
    scene = record.scene
    return (
        None if scene is None else tuple(LabeledBox(f"{item.color} {item.shape}", item.box) for item in scene.objects)
    )


def _open_coco(root: Path) -> Iterator[BoxLookup]:
    directory = root / "annotations" if (root / "annotations").is_dir() else root
    boxes: dict[str, tuple[LabeledBox, ...]] = {}
    for path in sorted(directory.glob("instances_*.json")):
        boxes |= _read_coco(path)
    if boxes:
        yield lambda record: boxes.get(record.image_path.name)


def _read_coco(path: Path) -> dict[str, tuple[LabeledBox, ...]]:
    """Boxes of each image file that the file lists, crowds included."""
    content = load_json(path)
    try:
        names = {category["id"]: category["name"] for category in content["categories"]}
        images = {image["id"]: image for image in content["images"]}
        boxes: dict[int, list[LabeledBox]] = {image_id: [] for image_id in images}
        for annotation in content["annotations"]:
            image_id = annotation["image_id"]
            x, y, width, height = annotation["bbox"]
            box = _relative_box(x, y, x + width, y + height, images[image_id]["width"], images[image_id]["height"])
            boxes[image_id].append(LabeledBox(names[annotation["category_id"]], box))
        return {image["file_name"]: tuple(boxes[image_id]) for image_id, image in images.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise CaptioningError(
            f"{path}: not a COCO instances file ({type(error).__name__}: {error}); download it again"
        ) from None


def _open_xml(root: Path) -> Iterator[BoxLookup]:
    if (root / "Annotations").is_dir():
        yield lambda record: _read_xml(root, record.image_path.stem)


def _read_xml(root: Path, stem: str) -> tuple[LabeledBox, ...] | None:
    path = root / "Annotations" / f"{stem}.xml"
    try:
        objects = _parse_xml(path)
    except FileNotFoundError:
        return None
    except (ElementTree.ParseError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CaptioningError(f"{path}: not a PASCAL VOC annotation ({error}); download it again") from None
    sentences = root / "Sentences" / f"{stem}.txt"
    if not sentences.is_file():
        return tuple(objects)
    phrases = _read_phrases(sentences)
    return tuple(LabeledBox(phrase, box) for entity, box in objects for phrase in phrases.get(entity, ()))


def _parse_xml(path: Path) -> list[LabeledBox]:
    """Boxes with the names of their objects. An object of Flickr30k Entities may have several, or no box at all."""
    content = ElementTree.parse(path).getroot()
    width, height = (float(content.findtext(f"size/{side}", "")) for side in ("width", "height"))
    boxes = []
    for item in content.iter("object"):
        edges = [item.findtext(f"bndbox/{edge}") for edge in ("xmin", "ymin", "xmax", "ymax")]
        if any(edges):
            left, top, right, bottom = (float(edge or "") for edge in edges)
            box = _relative_box(left - 1, top - 1, right, bottom, width, height)  # pixels are counted from 1
            boxes += [LabeledBox((name.text or "").strip(), box) for name in item.findall("name")]
    return boxes


def _read_phrases(path: Path) -> dict[str, tuple[str, ...]]:
    """Distinct phrases of each entity in the sentences of an image."""
    phrases: dict[str, dict[str, None]] = {}
    for entity, phrase in _ENTITY.findall(path.read_text(encoding="utf-8")):
        phrases.setdefault(entity, {})[phrase.strip().lower()] = None
    return {entity: tuple(found) for entity, found in phrases.items()}


def _relative_box(left: float, top: float, right: float, bottom: float, width: float, height: float) -> Box:
    """Convert pixels to fractions of the image, clipped to it."""
    return Box(*(min(max(x, 0.0), 1.0) for x in (left / width, top / height, right / width, bottom / height)))
