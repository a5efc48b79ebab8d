import random

import pytest

from captioning.datasets.synthetic.grammar import (
    WORD_CATEGORIES,
    check_statements,
    generate_captions,
    grounded_words,
    is_caption_true,
    noun_phrases,
)
from captioning.datasets.synthetic.scene import Scene, SceneObject, sample_scene
from captioning.preprocessing.tokenizer import tokenize

CIRCLE = SceneObject("circle", "red", "small", 1 / 6, 1 / 6, 0.08)  # top left
SQUARE = SceneObject("square", "blue", "large", 5 / 6, 1 / 2, 0.13)  # right
CROSS = SceneObject("cross", "black", "small", 1 / 2, 5 / 6, 0.08)  # bottom
SCENE = Scene((CIRCLE, SQUARE, CROSS), (240, 240, 240))


def test_all_that_is_described_is_true_and_well_formed() -> None:
    source = random.Random(1)
    seen = set()
    for _ in range(500):
        scene = sample_scene(source)
        captions = generate_captions(scene, source)
        assert len(captions) == 5
        for caption in captions:
            assert is_caption_true(caption, scene), caption
            seen.add(caption)
            for phrase in noun_phrases(caption, scene):
                words = tokenize(caption)[phrase.start : phrase.end + 1]
                assert phrase.referent is not None
                assert words[0] == "a"
                assert words[-2:] == [phrase.referent.color, phrase.referent.shape]
    assert len(seen) > 1500, "wording should vary"


def test_a_caption_of_one_scene_is_mostly_false_of_another() -> None:
    source = random.Random(2)
    pairs = [(sample_scene(source), sample_scene(source)) for _ in range(200)]
    wrong = [is_caption_true(caption, other) for scene, other in pairs for caption in generate_captions(scene, source)]
    assert sum(wrong) / len(wrong) < 0.02


@pytest.mark.parametrize(
    "caption",
    [
        "a red circle",
        "There is a small red circle.",
        "a red circle left of a blue square",
        "a small red circle is left of a large blue square and a black cross",
        "a red circle above a blue square",
        "we see a black cross below a red circle",
        "here is a blue square with a black cross and a red circle",
        "there are three shapes: a red circle, a blue square and a black cross",
        "a red circle is in the top left corner",
        "a blue square on the right",
        "a black cross at the bottom",
    ],
)
def test_true(caption: str) -> None:
    assert is_caption_true(caption, SCENE), check_statements(caption, SCENE)


@pytest.mark.parametrize(
    "caption",
    [
        "a large red circle",  # it is small
        "a green circle",
        "a red square",
        "a red circle right of a blue square",
        "a red circle below a blue square",
        "there are two shapes: a red circle and a blue square",
        "a blue square on the left",
        "a red circle in the middle",
        "a red circle and a red circle",  # there is but one
        "a red circle left of",
        "a red circle and",
        "left of a red circle",
        "a red circle left of above a blue square",
        "a a red circle",
        "a red circle there is",
        "a red red circle",
        "there is",
        "",
        "<unk>",
        "a red circle of a blue square",
    ],
)
def test_false(caption: str) -> None:
    assert not is_caption_true(caption, SCENE), check_statements(caption, SCENE)


def test_says_which_statement_is_false() -> None:
    statements = check_statements("a red circle right of a blue square and a black cross", SCENE)
    assert [(statement.text, statement.is_true) for statement in statements] == [
        ("a red circle", True),
        ("a blue square", True),
        ("right of a blue square", False),
        ("a black cross", True),
    ]


def test_phrases_name_their_objects() -> None:
    found = noun_phrases("there is a small red circle left of a green star", SCENE)
    assert [(phrase.start, phrase.end, phrase.referent) for phrase in found] == [(2, 5, CIRCLE)]
    found = noun_phrases("a red circle and a green square", SCENE)
    assert [(phrase.start, phrase.end, phrase.referent) for phrase in found] == [(0, 2, CIRCLE), (4, 6, None)]


def test_words_that_tell_of_one_object() -> None:
    caption = "There is a small red circle left of a green cross in the top left corner."
    words = tokenize(caption)
    categories = [
        (words[word.position], word.position, word.category, word.referent) for word in grounded_words(caption, SCENE)
    ]
    assert categories == [
        ("small", 3, "size", CIRCLE),
        ("red", 4, "color", CIRCLE),
        ("circle", 5, "shape", CIRCLE),
        ("green", 9, "color", None),
        ("cross", 10, "shape", None),
        ("top", 13, "position", None),
        ("left", 14, "position", None),
        ("corner", 15, "position", None),
    ]
    (place,) = (word for word in grounded_words("a black cross is at the bottom", SCENE) if word.category == "position")
    assert place.referent == CROSS
    assert {kind for _, _, kind, _ in categories} == set(WORD_CATEGORIES)
