import json
from pathlib import Path
from typing import Any

import pytest

from captioning import datasets
from captioning.datasets.record import LabeledBox, Record
from captioning.preprocessing.image import Box
from captioning.utils.errors import CaptioningError
from tests.datasets.conftest import MakeImages

VOC = """<annotation><size><width>200</width><height>100</height></size>
<object><name>aeroplane</name><bndbox><xmin>1</xmin><ymin>11</ymin><xmax>100</xmax><ymax>120</ymax></bndbox></object>
</annotation>"""

ENTITIES = """<annotation><filename>a.jpg</filename><size><width>200</width><height>100</height></size>
<object><name>1</name><name>2</name>
  <bndbox><xmin>1</xmin><ymin>1</ymin><xmax>100</xmax><ymax>50</ymax></bndbox></object>
<object><name>3</name><scene>1</scene><nobndbox>1</nobndbox></object>
</annotation>"""
SENTENCES = """[/EN#1/people A young boy] with [/EN#2/clothing/other a red shirt] on [/EN#3/scene grass] .
[/EN#1/people A boy] plays .
"""


def write_coco(root: Path, **changes: Any) -> None:
    (root / "annotations").mkdir(exist_ok=True)
    images = [{"id": n, "file_name": f"{n}.jpg", "width": 200, "height": 100} for n in (1, 2, 3)]
    captions = [{"image_id": n, "caption": "A dog"} for n in (1, 2, 3)]
    content = {"images": images, "annotations": captions}
    (root / "annotations" / "captions_train2017.json").write_text(json.dumps(content))
    instances = {
        "images": images[:2],
        "categories": [{"id": 7, "name": "dog"}],
        "annotations": [{"image_id": 1, "category_id": 7, "bbox": [50, 20, 100, 40]}],
        **changes,
    }
    (root / "annotations" / "instances_train2017.json").write_text(json.dumps(instances))


def load(root: Path) -> dict[str, tuple[LabeledBox, ...] | None]:
    return {record.image_path.name: record.boxes for record in datasets.load_records(root)}


def test_coco(tmp_path: Path, make_images: MakeImages) -> None:
    """An image without objects is not the same as an image that is not annotated."""
    make_images(*(f"train2017/{n}.jpg" for n in (1, 2, 3)))
    write_coco(tmp_path)
    box = LabeledBox("dog", Box(0.25, 0.2, 0.75, 0.6))
    assert load(tmp_path) == {"1.jpg": (box,), "2.jpg": (), "3.jpg": None}


def test_coco_file_with_missing_fields(tmp_path: Path, make_images: MakeImages) -> None:
    make_images(*(f"train2017/{n}.jpg" for n in (1, 2, 3)))
    write_coco(tmp_path, categories=[])
    with pytest.raises(CaptioningError, match=r"instances_train2017\.json: not a COCO instances file"):
        datasets.load_records(tmp_path)


@pytest.fixture
def custom(tmp_path: Path, make_images: MakeImages) -> Path:
    make_images("images/a.jpg", "images/b.jpg")
    rows = [{"image": f"{name}.jpg", "captions": ["A boy"]} for name in "ab"]
    (tmp_path / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "Annotations").mkdir()
    return tmp_path


def test_pascal_voc(custom: Path) -> None:
    (custom / "Annotations" / "a.xml").write_text(VOC)
    assert load(custom) == {"a.jpg": (LabeledBox("aeroplane", Box(0, 0.1, 0.5, 1)),), "b.jpg": None}
    assert load(custom / "captions.jsonl") == load(custom)


def test_flickr30k_entities(custom: Path) -> None:
    (custom / "Annotations" / "a.xml").write_text(ENTITIES)
    (custom / "Sentences").mkdir()
    (custom / "Sentences" / "a.txt").write_text(SENTENCES)
    box = Box(0, 0, 0.5, 0.5)
    expected = tuple(LabeledBox(phrase, box) for phrase in ("a young boy", "a boy", "a red shirt"))
    assert load(custom) == {"a.jpg": expected, "b.jpg": None}


@pytest.mark.parametrize("content", ["<annotation>", "<annotation/>", VOC.replace(">200<", ">0<")])
def test_xml_that_is_no_annotation(custom: Path, content: str) -> None:
    (custom / "Annotations" / "a.xml").write_text(content)
    with pytest.raises(CaptioningError, match=r"a\.xml: not a PASCAL VOC annotation"):
        datasets.load_records(custom)


def test_synthetic_scenes(drawn: Path) -> None:
    record: Record = datasets.load_records(drawn)[0]
    assert record.scene is not None
    assert record.boxes == tuple(LabeledBox(f"{item.color} {item.shape}", item.box) for item in record.scene.objects)
