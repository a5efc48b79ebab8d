import dataclasses
import shutil
import warnings
from pathlib import Path

import pytest

from captioning.cli.main import main
from captioning.datasets import load_records
from captioning.datasets.mixture import DatasetConfig, load_mixture
from captioning.datasets.synthetic import shapes
from captioning.utils.errors import CaptioningError


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a second dataset."""
    root = tmp_path_factory.mktemp("other") / "scenes"
    shapes.generate_dataset(root, num_images=20, seed=4)
    return root


def test_records_name_their_data_set(drawn: Path, other: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no duplicates
        records = load_mixture([DatasetConfig(drawn), DatasetConfig(other, name="second")])
    assert [record.dataset for record in records] == ["shapes"] * 60 + ["second"] * 20
    assert [dataclasses.replace(record, dataset="") for record in records] == load_records(drawn) + load_records(other)


def test_boxes_are_held_out_per_data_set(drawn: Path, other: Path) -> None:
    records = load_mixture([DatasetConfig(drawn, held_out_boxes=5), DatasetConfig(other)])
    num_test = {name: sum(r.split == "test" and r.dataset == name for r in records) for name in ("shapes", "scenes")}
    before = {root.name: sum(r.split == "test" for r in load_records(root)) for root in (drawn, other)}
    assert num_test == {"shapes": before["shapes"] + 5, "scenes": before["scenes"]}


def test_training_images_that_another_set_evaluates_are_dropped(drawn: Path, tmp_path: Path) -> None:
    """Of two copies of a dataset, one with all images in the training split."""
    copy = tmp_path / "copy"
    copy.mkdir()
    records = load_records(drawn)
    rows = ["image,caption"]
    for number, record in enumerate(records):
        shutil.copy(record.image_path, copy / f"renamed{number}.jpg")
        rows.append(f'renamed{number}.jpg,"{record.captions[0]}"')
    (copy / "captions.csv").write_text("\n".join(rows) + "\n")
    copied = load_records(copy)
    evaluated = {number for number, record in enumerate(records) if record.split != "train"}
    leaks = [r for r in copied if r.split == "train" and int(r.image_path.stem.removeprefix("renamed")) in evaluated]
    assert leaks
    with pytest.warns(UserWarning, match="training images that are validation or test images of another dataset"):
        mixed = load_mixture([DatasetConfig(drawn), DatasetConfig(copy)])
    assert not {record.image_path for record in leaks} & {record.image_path for record in mixed}
    assert {record.image_path for record in mixed} <= {record.image_path for record in [*records, *copied]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": 0}, "weight of x must be > 0, got 0"),
        ({"held_out_boxes": -1}, "held_out_boxes of x must be >= 0, got -1"),
        ({"name": "a/b"}, "'a/b' cannot name a dataset"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, float | str], message: str) -> None:
    with pytest.raises(CaptioningError, match=message):
        DatasetConfig(Path("x"), **settings)


def test_names_must_differ(drawn: Path) -> None:
    with pytest.raises(CaptioningError, match="several datasets are called 'shapes'; give them different names"):
        load_mixture([DatasetConfig(drawn), DatasetConfig(drawn)])


def test_inspect_data_summarizes_each_data_set_and_all(
    drawn: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["inspect-data", str(drawn), str(other)])
    output = capsys.readouterr().out
    positions = [output.index(heading) for heading in ("shapes\n", "scenes\n", "all datasets\n")]
    assert positions == sorted(positions)
    assert "80" in output[positions[2] :]
