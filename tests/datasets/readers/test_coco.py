import json
from pathlib import Path

import pytest

from captioning import datasets
from captioning.utils.errors import CaptioningError
from tests.datasets.conftest import MakeImages


def write(root: Path, name: str, identifiers: list[int]) -> None:
    (root / "annotations").mkdir(exist_ok=True)
    content = {
        "images": [{"id": number, "file_name": f"{number}.jpg"} for number in identifiers],
        "annotations": [
            {"image_id": number, "id": 10 * number + turn, "caption": f"Caption {turn} of {number}"}
            for turn in (0, 1)
            for number in identifiers
        ],
    }
    (root / "annotations" / f"captions_{name}.json").write_text(json.dumps(content))


@pytest.mark.parametrize("year", ["2014", "2017"])
@pytest.mark.parametrize("folder", ["", "images/"])
def test_both_years(tmp_path: Path, make_images: MakeImages, year: str, folder: str) -> None:
    make_images(f"{folder}train{year}/1.jpg", f"{folder}train{year}/2.jpg", f"{folder}val{year}/3.jpg")
    write(tmp_path, f"train{year}", [1, 2])
    write(tmp_path, f"val{year}", [3])
    records = datasets.load_records(tmp_path)
    assert [(record.image_path, record.split) for record in records] == [
        (tmp_path / folder / f"train{year}" / "1.jpg", "train"),
        (tmp_path / folder / f"train{year}" / "2.jpg", "train"),
        (tmp_path / folder / f"val{year}" / "3.jpg", "val"),
    ]
    assert records[2].captions == ("Caption 0 of 3", "Caption 1 of 3")
    assert records[2].metadata == {"cocoid": 3}


def test_one_year_at_a_time(tmp_path: Path) -> None:
    write(tmp_path, "train2014", [1])
    write(tmp_path, "val2017", [1])
    with pytest.raises(CaptioningError, match="2014 and 2017"):
        datasets.load_records(tmp_path)


def test_another_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "captions_val2017.json").write_text('{"images": [{"id": 1}], "annotations": [{"image_id": 2}]}')
    with pytest.raises(CaptioningError, match=r"captions_val2017\.json: not a COCO caption file"):
        datasets.load_records(tmp_path)
