"""Loading, scoring and comparison of the captions of any system."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from captioning.cli.main import main
from captioning.evaluation import metrics, scoring
from captioning.evaluation.bootstrap import bootstrap_weights
from captioning.preprocessing.tokenizer import tokenize
from captioning.utils.errors import CaptioningError

pytestmark = pytest.mark.filterwarnings("ignore:METEOR is not computed")  # see without_java

REFERENCES = [
    ["A black dog runs on the green grass.", "The dog is running."],
    ["Two children play in the snow.", "Kids playing in white snow outside."],
    ["A man rides a red bike down the street.", "A cyclist on the road."],
    ["A bird sits on a branch.", "A small bird in a tree."],
]
GOOD = ["a dog runs on the grass", "two kids play in the snow", "a man on a red bike", "a bird sits in a tree"]
BAD = ["a cat", "the snow", "a man rides a horse", "a dog runs on the grass"]


def score(captions: list[str], references: list[list[str]]) -> scoring.SystemScores:
    return scoring.score_captions(
        [tokenize(caption) for caption in captions], [[tokenize(caption) for caption in own] for own in references]
    )


@pytest.fixture(autouse=True)
def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """METEOR is slow and has its own test."""
    monkeypatch.setattr(metrics, "meteor", lambda *_: None)


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write(tmp_path / "references.txt", "".join("\t".join(own) + "\n" for own in REFERENCES))


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    images = [{"id": 70 + index, "file_name": f"{index}.jpg"} for index in range(4)]
    annotations = [
        {"image_id": 70 + index, "caption": caption} for index, own in enumerate(REFERENCES) for caption in own
    ]
    return write(tmp_path / "captions_val2014.json", {"images": images, "annotations": annotations})


@pytest.fixture
def karpathy(tmp_path: Path) -> Path:
    images = [
        {
            "filename": f"{index}.jpg",
            "imgid": index,
            "split": "test",
            "sentences": [{"raw": caption} for caption in own],
        }
        for index, own in enumerate(REFERENCES)
    ]
    train_image = {"filename": "x.jpg", "imgid": 9, "split": "train", "sentences": [{"tokens": GOOD[0].split()}]}
    return write(tmp_path / "dataset.json", {"images": [*images, train_image]})


def write_predictions(directory: Path, captions: list[str]) -> dict[str, Path]:
    """The same captions in every format; entries of the JSON formats are in reverse order."""
    indexed = list(enumerate(captions))[::-1]
    lines = [json.dumps({"image": f"/directory/{index}.jpg", "caption": caption}) for index, caption in indexed]
    images = [{"filename": f"{index}.jpg", "imgid": index, "sentence": {"raw": caption}} for index, caption in indexed]
    results = [{"image_id": 70 + index, "caption": caption} for index, caption in indexed]
    return {
        "text": write(directory / "captions.txt", "\n".join(captions)),
        "coco": write(directory / "captions.json", results),
        "predict": write(directory / "captions.jsonl", "\n".join(lines)),
        "karpathy": write(directory / "karpathy.json", {"images": images}),
    }


@pytest.mark.parametrize(
    ("prediction_format", "reference_format"),
    [
        ("text", "text"),
        ("coco", "coco"),
        ("predict", "coco"),
        ("predict", "karpathy"),
        ("karpathy", "karpathy"),
    ],
)
def test_all_formats_yield_the_same_scores(
    prediction_format: str, reference_format: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    predictions = write_predictions(tmp_path, GOOD)[prediction_format]
    report = scoring.score_files([predictions], request.getfixturevalue(reference_format))
    expected = score(GOOD, REFERENCES).metrics
    assert {name: report.systems[0].metrics[name] for name in expected} == pytest.approx(expected)
    assert report.num_images == 4


def test_only_images_with_a_prediction_are_scored(tmp_path: Path, coco: Path) -> None:
    predictions = write(tmp_path / "one.json", [{"image_id": 71, "caption": GOOD[1]}])
    report = scoring.score_files([predictions], coco)
    assert report.num_images == 1
    assert report.systems[0].metrics["bleu1"] == pytest.approx(score(GOOD[1:2], REFERENCES[1:2]).metrics["bleu1"])


def test_train_overlap(tmp_path: Path, karpathy: Path) -> None:
    report = scoring.score_files([write_predictions(tmp_path, GOOD)["karpathy"]], karpathy)
    assert report.systems[0].metrics["train_overlap"] == 1 / 4


def test_bootstrap_samples_equal_scores_of_repeated_images() -> None:
    scores = score(GOOD, REFERENCES)
    weights = np.array([[2, 0, 1, 1], [0, 3, 0, 1]])
    samples = scores.bootstrap(weights)
    for row, counts in enumerate(weights):
        indices = np.repeat(np.arange(4), counts)
        expected = score([GOOD[index] for index in indices], [REFERENCES[index] for index in indices]).metrics
        for name in ("bleu1", "bleu2", "bleu3", "bleu4", "rouge_l"):  # document frequencies of CIDEr-D stay fixed
            assert samples[name][row] == pytest.approx(expected[name]), name


def test_confidence_intervals_contain_the_score_and_shrink_with_the_number_of_images() -> None:
    few, many = score(GOOD + BAD, REFERENCES * 2), score((GOOD + BAD) * 25, REFERENCES * 50)
    widths = []
    for scores, num_images in ((few, 8), (many, 200)):
        low, high = scoring.confidence_intervals(scores, bootstrap_weights(num_images))["rouge_l"]
        assert low < scores.metrics["rouge_l"] < high
        widths.append(high - low)
    assert widths[1] == pytest.approx(widths[0] / 5, rel=0.25)


def test_paired_bootstrap_p_values() -> None:
    good, bad = score(GOOD * 10, REFERENCES * 10), score(BAD * 10, REFERENCES * 10)
    weights = bootstrap_weights(40)
    assert scoring.paired_bootstrap_p_values(good, bad, weights)["bleu1"] < 0.01
    assert scoring.paired_bootstrap_p_values(good, good, weights)["bleu1"] == 1


def test_table_of_two_systems(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = (
        write(tmp_path / name, "\n".join(captions)) for name, captions in (("good.txt", GOOD), ("bad.txt", BAD))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        main(["score", str(good), str(bad), str(text), "--bootstrap"])
    output = capsys.readouterr()
    header, *rows, count = output.out.splitlines()
    assert header.split() == ["good.txt", "bad.txt", "p"]
    assert [row.split()[0] for row in rows[:6]] == ["bleu1", "bleu2", "bleu3", "bleu4", "rouge_l", "cider_d"]
    assert f"{score(GOOD, REFERENCES).metrics['cider_d']:.4f} [" in rows[5]
    assert count == "4 images"
    assert "pip install 'captioning[eval]'" in output.err


def test_json_of_one_system(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["score", str(write_predictions(tmp_path, GOOD)["text"]), str(text), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["systems"][0]["scores"] == pytest.approx(score(GOOD, REFERENCES).metrics)
    assert "p_values" not in report


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"image_id": 5, "caption": "a dog"}], "1 of 1 captions have no references (for example 5)"),
        ([{"image_id": 70}], 'entry 1: expected {"image_id"'),
        ([3], 'entry 1: expected {"image_id"'),
        ([{"image_id": 70, "caption": "a"}, {"image_id": 70, "caption": "b"}], "duplicate caption of image 70"),
        ([], "no captions"),
        ("{", "not JSON"),
    ],
)
def test_invalid_predictions(content: object, message: str, tmp_path: Path, coco: Path) -> None:
    with pytest.raises(CaptioningError) as caught:
        scoring.score_files([write(tmp_path / "captions.json", content)], coco)
    assert message in str(caught.value)


def test_invalid_references(tmp_path: Path, text: Path, coco: Path) -> None:
    predictions = write_predictions(tmp_path, GOOD)["coco"]
    for content in ({"images": [{"x": 1}]}, [1]):
        with pytest.raises(CaptioningError, match="not a caption file in Karpathy or COCO format"):
            scoring.score_files([predictions], write(tmp_path / "wrong.json", content))
    with pytest.raises(CaptioningError, match="line 2: no reference"):
        scoring.score_files([predictions], write(tmp_path / "gap.txt", "a dog\n\na cat\n"))
    subset = write(tmp_path / "subset.json", [{"image_id": 70, "caption": "a dog"}])
    with pytest.raises(CaptioningError, match="captions of other images than"):
        scoring.score_files([predictions, subset], coco)
    with pytest.raises(CaptioningError, match="cannot be read"):
        scoring.score_files([tmp_path / "missing.txt"], text)


def test_an_empty_caption_scores_as_empty(coco: Path, tmp_path: Path) -> None:
    """COCO's evaluation reads such results; published ones contain them."""
    captions = [*GOOD[:3], ""]
    paths = write_predictions(tmp_path, captions)
    reports = [scoring.score_files([paths[name]], coco) for name in ("coco", "predict", "karpathy")]
    expected = score(captions, REFERENCES)
    for report in reports:
        assert report.num_images == 4
        assert report.systems[0].metrics == pytest.approx(expected.metrics)
    assert [scores[3] for scores in expected.per_caption.values()] == [0, 0]
    assert expected.metrics["bleu1"] < score(GOOD, REFERENCES).metrics["bleu1"]


def test_a_file_of_empty_captions(coco: Path, tmp_path: Path) -> None:
    report = scoring.score_files([write_predictions(tmp_path, [""] * 4)["coco"]], coco, bootstrap=True)
    assert report.systems[0].metrics["cider_d"] == report.systems[0].metrics["bleu4"] == 0
    assert "nan" not in report.to_table()
