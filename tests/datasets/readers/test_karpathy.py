import json
from pathlib import Path

import pytest
from PIL import Image

from captioning.datasets.readers import karpathy
from captioning.utils.errors import CaptioningError


def write(root: Path, content: object, name: str = "dataset.json") -> None:
    (root / name).write_text(content if isinstance(content, str) else json.dumps(content))


def entry(name: str, split: str = "train", raw: tuple[str, ...] = ("A dog.",)) -> dict:
    return {"filename": name, "split": split, "sentences": [{"raw": text, "tokens": text.split()} for text in raw]}


def make_image(root: Path, name: str) -> None:
    (root / name).parent.mkdir(exist_ok=True, parents=True)
    Image.new("RGB", (8, 8)).save(root / name)


def test_reads_files_captions_and_splits(tmp_path: Path) -> None:
    make_image(tmp_path, "a.jpg")
    make_image(tmp_path, "val2014/b.jpg")
    tokens_only = {
        "filename": "b.jpg",
        "filepath": "val2014",
        "split": "restval",
        "cocoid": 7,
        "sentences": [{"tokens": ["a", "cat"]}],
    }
    write(tmp_path, {"images": [entry("a.jpg", "val", ("A dog.", "Dogs!")), tokens_only]}, "dataset_coco.json")
    first, second = karpathy.read_records(tmp_path)
    assert (first.image_path, first.captions, first.split) == (tmp_path / "a.jpg", ("A dog.", "Dogs!"), "val")
    assert (second.image_path, second.captions, second.split) == (tmp_path / "val2014" / "b.jpg", ("a cat",), "train")
    assert second.metadata == {"cocoid": 7}


def test_missing_images_and_images_without_captions_are_counted_in_one_warning(tmp_path: Path) -> None:
    make_image(tmp_path, "a.jpg")
    make_image(tmp_path, "silent.jpg")
    write(tmp_path, {"images": [entry("a.jpg"), entry("gone.jpg"), entry("away.jpg"), entry("silent.jpg", raw=())]})
    with pytest.warns(
        UserWarning, match=r"skipped 2 images without a file \(for example gone.jpg\), 1 image without"
    ) as caught:
        records = karpathy.read_records(tmp_path)
    assert len(caught) == 1
    assert [record.image_path.name for record in records] == ["a.jpg"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"images": [entry("gone.jpg")]}, r"no usable image \(1 image without a file"),
        ({"images": [{"filename": "a.jpg"}]}, "not a caption file .*sentences"),
        ({"photos": []}, "not a caption file .*images"),
        ("{", "not JSON"),
        ([], "not a caption file"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: object, message: str) -> None:
    write(tmp_path, content)
    with pytest.raises(CaptioningError, match=message) as caught:
        karpathy.read_records(tmp_path)
    assert str(tmp_path / "dataset.json") in str(caught.value)


def test_one_file_at_a_time(tmp_path: Path) -> None:
    for name in ("dataset_a.json", "dataset_b.json"):
        write(tmp_path, {}, name)
    with pytest.raises(CaptioningError, match="several caption files"):
        karpathy.read_records(tmp_path)


def test_images_in_a_directory_that_the_file_does_not_name(tmp_path: Path) -> None:
    make_image(tmp_path, "images/a.jpg")
    write(tmp_path, {"images": [entry("a.jpg")]}, "dataset_flickr8k.json")
    assert karpathy.read_records(tmp_path)[0].image_path == tmp_path / "images" / "a.jpg"
