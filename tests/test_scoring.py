"""Captions of any system, read, scored and compared."""

import json
from pathlib import Path

import numpy as np
import pytest

from captioning import metrics, scoring
from captioning.cli import main
from captioning.errors import CaptioningError
from captioning.text import tokenise

REFERENCES = [
    ["A black dog runs on the green grass.", "The dog is running."],
    ["Two children play in the snow.", "Kids playing in white snow outside."],
    ["A man rides a red bike down the street.", "A cyclist on the road."],
    ["A bird sits on a branch.", "A small bird in a tree."],
]
GOOD = ["a dog runs on the grass", "two kids play in the snow", "a man on a red bike", "a bird sits in a tree"]
BAD = ["a cat", "the snow", "a man rides a horse", "a dog runs on the grass"]


def scored(captions: list[str], references: list[list[str]]) -> scoring.Scored:
    return scoring.score(
        [tokenise(caption) for caption in captions], [[tokenise(caption) for caption in own] for own in references]
    )


@pytest.fixture(autouse=True)
def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """METEOR has a test of its own, and takes its time."""
    monkeypatch.setattr(metrics, "meteor", lambda *_: None)


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write(tmp_path / "references.txt", "".join("\t".join(own) + "\n" for own in REFERENCES))


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    images = [{"id": 70 + number, "file_name": f"{number}.jpg"} for number in range(4)]
    annotations = [{"image_id": 70 + number, "caption": said} for number, own in enumerate(REFERENCES) for said in own]
    return write(tmp_path / "captions_val2014.json", {"images": images, "annotations": annotations})


@pytest.fixture
def karpathy(tmp_path: Path) -> Path:
    images = [
        {"filename": f"{number}.jpg", "imgid": number, "split": "test", "sentences": [{"raw": said} for said in own]}
        for number, own in enumerate(REFERENCES)
    ]
    seen = {"filename": "x.jpg", "imgid": 9, "split": "train", "sentences": [{"tokens": GOOD[0].split()}]}
    return write(tmp_path / "dataset.json", {"images": [*images, seen]})


def systems(folder: Path, captions: list[str]) -> dict[str, Path]:
    """The same captions in every layout; the entries are in no order."""
    numbered = list(enumerate(captions))[::-1]
    lines = [json.dumps({"image": f"/somewhere/{number}.jpg", "caption": said}) for number, said in numbered]
    images = [{"filename": f"{number}.jpg", "imgid": number, "sentence": {"raw": said}} for number, said in numbered]
    return {
        "text": write(folder / "said.txt", "\n".join(captions)),
        "coco": write(folder / "said.json", [{"image_id": 70 + number, "caption": said} for number, said in numbered]),
        "predicted": write(folder / "said.jsonl", "\n".join(lines)),
        "karpathy": write(folder / "karpathy.json", {"images": images}),
    }


@pytest.mark.parametrize(
    ("said", "against"),
    [
        ("text", "text"),
        ("coco", "coco"),
        ("predicted", "coco"),
        ("predicted", "karpathy"),
        ("karpathy", "karpathy"),
    ],
)
def test_every_layout_gives_the_same_scores(
    said: str, against: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    report = scoring.compare([systems(tmp_path, GOOD)[said]], request.getfixturevalue(against))
    expected = scored(GOOD, REFERENCES).figures
    assert {name: report.systems[0].figures[name] for name in expected} == pytest.approx(expected)
    assert report.pictures == 4


def test_a_part_of_the_pictures_is_scored_alone(tmp_path: Path, coco: Path) -> None:
    one = write(tmp_path / "one.json", [{"image_id": 71, "caption": GOOD[1]}])
    report = scoring.compare([one], coco)
    assert report.pictures == 1
    assert report.systems[0].figures["bleu1"] == pytest.approx(scored(GOOD[1:2], REFERENCES[1:2]).figures["bleu1"])


def test_captions_seen_in_training_are_counted(tmp_path: Path, karpathy: Path) -> None:
    report = scoring.compare([systems(tmp_path, GOOD)["karpathy"]], karpathy)
    assert report.systems[0].figures["verbatim"] == 1 / 4


def test_variety_by_hand() -> None:
    captions = [["a", "dog", "runs"], ["a", "dog"]]
    assert metrics.variety(captions) == pytest.approx(
        {"distinct1": 3 / 5, "distinct2": 2 / 3, "vocabulary": 3, "length": 2.5}
    )
    assert metrics.verbatim(captions, [["a", "dog"], ["a"]]) == 0.5


def test_draws_are_what_would_come_of_scoring_them() -> None:
    """Figures of a draw against those of its pictures, written out as often as they were drawn."""
    good = scored(GOOD, REFERENCES)
    weights = np.array([[2, 0, 1, 1], [0, 3, 0, 1]])
    figures = good.resampled(weights)
    for row, counts in enumerate(weights):
        drawn = np.repeat(np.arange(4), counts)
        expected = scored([GOOD[number] for number in drawn], [REFERENCES[number] for number in drawn]).figures
        for name in ("bleu1", "bleu2", "bleu3", "bleu4", "rouge_l"):  # CIDEr-D's rarity is of the set as it stands
            assert figures[name][row] == pytest.approx(expected[name]), name


def test_bounds_hold_the_figure_and_narrow_with_more_pictures() -> None:
    few, many = scored(GOOD + BAD, REFERENCES * 2), scored((GOOD + BAD) * 25, REFERENCES * 50)
    widths = []
    for system, pictures in ((few, 8), (many, 200)):
        bounds = scoring.intervals(system, scoring.draws(pictures))
        low, high = bounds["rouge_l"]
        assert low < system.figures["rouge_l"] < high
        widths.append(high - low)
    assert widths[1] == pytest.approx(widths[0] / 5, rel=0.25)


def test_a_paired_test_tells_systems_apart() -> None:
    good, bad = scored(GOOD * 10, REFERENCES * 10), scored(BAD * 10, REFERENCES * 10)
    weights = scoring.draws(40)
    assert scoring.chance_of_no_difference(good, bad, weights)["bleu1"] < 0.01
    assert scoring.chance_of_no_difference(good, good, weights)["bleu1"] == 1


def test_a_table_of_two(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = (write(tmp_path / name, "\n".join(said)) for name, said in (("good.txt", GOOD), ("bad.txt", BAD)))
    main(["score", str(good), str(bad), str(text), "--bootstrap"])
    output = capsys.readouterr()
    header, *rows, count = output.out.splitlines()
    assert header.split() == ["good.txt", "bad.txt", "p"]
    assert [row.split()[0] for row in rows[:6]] == ["bleu1", "bleu2", "bleu3", "bleu4", "rouge_l", "cider"]
    assert f"{scored(GOOD, REFERENCES).figures['cider']:.4f} [" in rows[5]
    assert count == "4 pictures"
    assert "pip install 'captioning[eval]'" in output.err


def test_json_of_one(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["score", str(systems(tmp_path, GOOD)["text"]), str(text), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["systems"][0]["scores"] == pytest.approx(scored(GOOD, REFERENCES).figures)
    assert "p" not in report


@pytest.mark.parametrize(
    ("captions", "message"),
    [
        ([{"image_id": 5, "caption": "a dog"}], "1 of 1 captions have no references (such as that of 5)"),
        ([{"image_id": 70}], "entry 1: expected such as"),
        ([3], "entry 1: expected such as"),
        ([{"image_id": 70, "caption": "a"}, {"image_id": 70, "caption": "b"}], "a second caption of picture 70"),
        ([], "has no captions"),
        ("{", "not JSON"),
    ],
)
def test_captions_that_cannot_be_scored(captions: object, message: str, tmp_path: Path, coco: Path) -> None:
    with pytest.raises(CaptioningError) as caught:
        scoring.compare([write(tmp_path / "said.json", captions)], coco)
    assert message in str(caught.value)


def test_references_that_cannot_be_used(tmp_path: Path, text: Path, coco: Path) -> None:
    said = systems(tmp_path, GOOD)["coco"]
    for content, message in (
        ({"images": [{"x": 1}]}, "no references in a layout that is known"),
        ([1], "no references"),
    ):
        with pytest.raises(CaptioningError, match=message):
            scoring.compare([said], write(tmp_path / "wrong.json", content))
    with pytest.raises(CaptioningError, match="line 2: has no reference"):
        scoring.compare([said], write(tmp_path / "gap.txt", "a dog\n\na cat\n"))
    part = write(tmp_path / "part.json", [{"image_id": 70, "caption": "a dog"}])
    with pytest.raises(CaptioningError, match="not of the same pictures"):
        scoring.compare([said, part], coco)
    with pytest.raises(CaptioningError, match="cannot be read"):
        scoring.compare([tmp_path / "none.txt"], text)
