import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from captioning import datasets
from captioning.caption import Caption
from captioning.captioner import Captioner
from captioning.cli.main import main
from captioning.datasets.boxes import boxes_by_category
from captioning.datasets.record import Record
from captioning.evaluation import grounding_report
from captioning.evaluation.grounding import ImageGrounding, ground_words, measure_grounding
from captioning.preprocessing.image import Box
from captioning.utils.errors import CaptioningError

WHOLE_IMAGE = Box(0, 0, 1, 1)
DOG = Box(0, 0, 0.5, 0.5)
SQUARE = (100, 100)


def make_caption(words: list[str], maps: list[Any], crop_box: Box = WHOLE_IMAGE) -> Caption:
    attention_maps = np.array(maps, dtype=np.float32)
    return Caption(words, [0.5] * len(words), attention_maps, "", crop_box)


def point(row: int, column: int, size: int = 4) -> np.ndarray:
    attention_map = np.zeros((size, size))
    attention_map[row, column] = 1
    return attention_map


UNIFORM = np.full((4, 4), 1 / 16)


def test_map_on_the_box() -> None:
    (word,) = ground_words(make_caption(["a", "dog"], [point(3, 3), point(1, 0)]), {"dog": (DOG,)}, SQUARE, slack=0)
    assert (word.position, word.category, word.box_area) == (1, "dog", 0.25)
    assert word.pointing == {"map": 1, "center": 1, "other_word": 0, "uniform": 0.25}
    assert word.mass == pytest.approx({"map": 1, "center": 1, "other_word": 0, "uniform": 0.25})


def test_uniform_map_yields_the_covered_fraction() -> None:
    boxes = {"dog": (Box(0, 0, 0.75, 0.5), Box(0.25, 0, 1, 0.25))}
    (word,) = ground_words(make_caption(["dog"], [UNIFORM]), boxes, SQUARE, slack=0)
    assert word.mass["map"] == word.mass["uniform"] == pytest.approx(7 / 16)
    assert word.pointing["map"] == word.pointing["uniform"] == pytest.approx(7 / 16)
    assert math.isnan(word.pointing["other_word"])


def test_cell_counts_with_its_covered_fraction() -> None:
    (word,) = ground_words(make_caption(["dog"], [point(0, 0)]), {"dog": (Box(0, 0, 0.125, 0.1),)}, SQUARE, slack=0)
    assert word.mass["map"] == pytest.approx(0.5 * 0.4)


@pytest.mark.parametrize(("slack", "expected"), [(0.0, 0), (0.03, 1)])
@pytest.mark.parametrize("image_size", [(100, 100), (200, 100)])
def test_slack_is_relative_to_the_shorter_side(slack: float, expected: int, image_size: tuple[int, int]) -> None:
    margin = 0.03 * 100 / image_size[0]
    box = Box(0, 0, 0.125 - 0.9 * margin, 1)  # the center of the first cell is at 0.125
    (word,) = ground_words(make_caption(["dog"], [point(0, 0)]), {"dog": (box,)}, image_size, slack)
    assert word.pointing["map"] == expected
    outside = Box(0, 0, 0.125 - 1.1 * margin, 1)
    (word,) = ground_words(make_caption(["dog"], [point(0, 0)]), {"dog": (outside,)}, image_size, slack)
    assert word.pointing["map"] == 0


def test_maps_of_a_cropped_image() -> None:
    """The maps cover the center square of an image that is twice as wide as high."""
    caption = make_caption(["dog"], [point(0, 0)], Box(0.25, 0, 0.75, 1))
    (word,) = ground_words(caption, {"dog": (Box(0.25, 0, 0.375, 0.25),)}, (200, 100), slack=0)
    assert word.pointing["map"] == word.mass["map"] == 1
    assert word.mass["uniform"] == pytest.approx(1 / 16)


def test_only_words_that_name_a_category_with_boxes() -> None:
    caption = make_caption("a man with a puppy and two dogs".split(), [UNIFORM] * 8)
    words = ground_words(caption, {"dog": (DOG,), "cat": (DOG,)}, SQUARE)
    assert [(word.position, word.category) for word in words] == [(4, "dog"), (7, "dog")]


def make_results() -> list[ImageGrounding]:
    """Two images: a small object that the map misses, and a large one that it finds; a cat that is not there."""
    record = Record(Path("a.jpg"), ("a dog",), "test")
    results = []
    for box, attention_map, named in (
        (Box(0, 0, 0.25, 0.25), point(3, 3), {"dog", "cat"}),
        (DOG, point(0, 0), {"dog"}),
    ):
        caption = make_caption(["a", "dog"], [UNIFORM, attention_map])
        words = ground_words(caption, {"dog": (box,)}, SQUARE)
        results.append(ImageGrounding(record, caption, words, named, {"dog", "bird"}))
    return results


def test_report() -> None:
    report = grounding_report.summarize(make_results())
    assert report.num_words == {"all": 2, "small": 1, "large": 1}
    values = {size: metrics["pointing/map"].mean for size, metrics in report.metrics.items()}
    assert values == {"all": 0.5, "small": 0, "large": 1}
    assert report.metrics["all"]["mass/uniform"].mean == pytest.approx((1 / 16 + 1 / 4) / 2)
    assert report.metrics["all"]["mass_over_uniform"].mean == pytest.approx(1 / (1 / 16 + 1 / 4))
    assert report.metrics["all"]["pointing_minus_center"].mean == 0
    assert report.object_precision.mean == pytest.approx(2 / 3)
    assert report.object_recall.mean == pytest.approx(2 / 4)
    assert report.categories["dog"] == pytest.approx(
        {
            "num_images": 2,
            "num_named": 2,
            "num_words": 2,
            "recall": 1,
            "precision": 1,
            "pointing/map": 0.5,
            "pointing/center": 0.5,
            "mass/map": 0.5,
            "mass/uniform": 5 / 32,
        }
    )
    assert report.categories["cat"] == {"num_images": 0, "num_named": 1, "num_words": 0, "precision": 0}
    assert report.categories["bird"] == {"num_images": 2, "num_named": 0, "num_words": 0, "recall": 0}
    assert report.metrics["all"]["pointing/map"].ci_low == 0
    assert report.metrics["all"]["pointing/map"].ci_high == 1
    table = grounding_report.to_markdown({"model": report})
    assert "| model: all" in table
    assert "| cat " in table
    assert json.loads(json.dumps(report.to_dict()))["num_words"] == report.num_words


def test_no_object_named() -> None:
    results = [result._replace(words=[]) for result in make_results()]
    with pytest.raises(CaptioningError, match="no caption names an object with a box"):
        grounding_report.summarize(results)


class PointingCaptioner:
    """Names the first object of each scene, and points at the center of its box."""

    def __init__(self, records: list[Record]) -> None:
        self.records = {record.image_path: record for record in records}

    def iter_captions(self, images: Any) -> Any:
        for path in images:
            scene = self.records[path].scene
            assert scene is not None
            item = scene.objects[0]
            attention_map = point(int(item.y * 16), int(item.x * 16), 16)
            caption = make_caption(["a", item.color, item.shape], [np.full((16, 16), 1 / 256)] * 2 + [attention_map])
            yield dataclasses.replace(caption, image=path)


def test_synthetic_scenes(drawn: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    records = datasets.load_records(drawn)
    categories = {category for record in records for category in boxes_by_category(record.boxes or ())}
    captioner: Any = PointingCaptioner(records)
    results = measure_grounding(captioner, records, [*categories, "dog"])
    report = grounding_report.summarize(results)
    assert report.metrics["all"]["pointing/map"].mean == 1
    assert report.metrics["all"]["mass/map"].mean > 0.95
    assert report.metrics["all"]["mass/other_word"].mean == pytest.approx(report.metrics["all"]["mass/uniform"].mean)
    assert report.object_precision.mean == 1
    assert all(row["precision"] == 1 for row in report.categories.values())
    assert grounding_report.plot_examples(tmp_path / "figures" / "a.png", results)
    assert (tmp_path / "figures" / "a.png").stat().st_size > 10_000


def test_unreadable_image(drawn: Path, tmp_path: Path, captioner: Captioner) -> None:
    record = dataclasses.replace(datasets.load_records(drawn)[0], image_path=tmp_path / "none.jpg")
    with pytest.raises(CaptioningError, match=r"none\.jpg: no such file"):
        measure_grounding(captioner, [record], ["circle"])


def test_command(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    stub = PointingCaptioner(datasets.load_records(drawn))
    monkeypatch.setattr("captioning.captioner.Captioner", SimpleNamespace(from_pretrained=lambda model: stub))
    main(
        ["grounding", "a/model.safetensors", "--data", str(drawn), "--num-images", "5", "--json", f"{tmp_path}/a.json"]
    )
    assert "| model: all" in capsys.readouterr().out
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["model"]["num_images"] == 5
    main(["grounding", "model", "--data", str(drawn), "--held-out-boxes", "30", "--num-images", "100"])
    num_test = sum(record.split == "test" for record in datasets.load_records(drawn))
    assert f"{30 + num_test} " in capsys.readouterr().out.splitlines()[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--split", "none"], "no images with boxes in split 'none'"), (["--num-images", "0"], "must be >= 1")],
)
def test_command_errors(drawn: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["grounding", "model", "--data", str(drawn), *arguments])
    assert message in capsys.readouterr().err
