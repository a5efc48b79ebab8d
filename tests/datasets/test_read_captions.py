import json
from pathlib import Path

import pytest

from captioning import datasets
from captioning.utils.errors import CaptioningError


def write_json(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_karpathy_file_without_images_on_disk(tmp_path: Path) -> None:
    entries = [
        {"filename": "a.jpg", "filepath": "val2014", "split": "restval", "cocoid": 7, "sentences": [{"raw": "A dog."}]},
        {"imgid": 3, "sentences": [{"tokens": ["a", "cat"]}]},
    ]
    first, second = datasets.read_captions(write_json(tmp_path / "dataset.json", {"images": entries}))
    assert (first.image_path, first.captions, first.split) == (Path("val2014/a.jpg"), ("A dog.",), "train")
    assert first.metadata == {"cocoid": 7}
    assert (second.image_path.name, second.captions, second.split) == ("", ("a cat",), "")
    assert second.metadata == {"imgid": 3}


@pytest.mark.parametrize("has_images", [True, False])
def test_coco_file_without_images_on_disk(tmp_path: Path, has_images: bool) -> None:
    annotations = [{"image_id": number, "caption": f"Caption of {number}"} for number in (2, 1, 2)]
    content: dict[str, object] = {"annotations": annotations}
    if has_images:
        content["images"] = [{"id": number, "file_name": f"{number}.jpg"} for number in (1, 2, 3)]
    records = datasets.read_captions(write_json(tmp_path / "captions_train2014.json", content))
    assert [(record.image_path.name, record.metadata) for record in records] == [
        ("2.jpg" if has_images else "", {"cocoid": 2}),
        ("1.jpg" if has_images else "", {"cocoid": 1}),
    ]
    assert records[0].captions == ("Caption of 2", "Caption of 2")
    assert {record.split for record in records} == {""}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"images": [{"filename": "a.jpg"}]}, "not a caption file in Karpathy or COCO format .*sentences"),
        ({"annotations": [{"image_id": 1}]}, "not a caption file in Karpathy or COCO format .*caption"),
        ([1], "not a caption file in Karpathy or COCO format"),
        ("{", "not JSON"),
    ],
)
def test_invalid_file(tmp_path: Path, content: object, message: str) -> None:
    path = write_json(tmp_path / "captions.json", content)
    with pytest.raises(CaptioningError, match=message) as caught:
        datasets.read_captions(path)
    assert str(caught.value).startswith(str(path))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CaptioningError, match=r"none\.json: cannot be read"):
        datasets.read_captions(tmp_path / "none.json")


def test_synthetic_dataset_in_the_old_format_must_be_regenerated(tmp_path: Path) -> None:
    write_json(tmp_path / "dataset.json", {"dataset": "shapes", "drawn": {"images": 1, "seed": 0}, "images": []})
    with pytest.raises(CaptioningError, match=r"dataset\.json: .*'drawn'.*delete the directory and regenerate it"):
        datasets.load_records(tmp_path)
