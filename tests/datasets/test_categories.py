import pytest

from captioning.datasets.categories import label_category, named_categories
from captioning.preprocessing.tokenizer import tokenize


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("Two men and a boy ride bikes.", {"men": "person", "boy": "person", "bikes": "bicycle"}),
        ("A puppy on a sofa near the TV", {"puppy": "dog", "sofa": "couch", "tv": "tv"}),
        ("A man eats a hot dog.", {"man": "person", "dog": "hot dog"}),
        ("Two dogs at a traffic light", {"dogs": "dog", "light": "traffic light"}),
        ("A plane in the light of the sun", {"plane": "airplane", "light": "light"}),
        ("A red fire hydrant", {"hydrant": "fire hydrant"}),
        ("A boy with a tennis racquet and a baseball bat", {"racquet": "tennis racket", "bat": "baseball bat"}),
        ("A teddy bear and a bear", {"bear": "bear"}),
        ("Oranges on an orange shirt", {"oranges": "orange", "orange": ""}),
        ("Balls on a pool table", {"balls": "sports ball", "table": ""}),
        ("Knives, sandwiches, buses and puppies", {"knives": "knife", "sandwiches": "sandwich", "buses": "bus"}),
        ("A glass beside a wine glass", {"glass": "wine glass"}),
        ("Red circles", {"circles": "circle"}),
    ],
)
def test_word_names_a_category(caption: str, expected: dict[str, str]) -> None:
    words = tokenize(caption)
    categories = dict(zip(words, named_categories(words), strict=True))
    assert {word: categories[word] for word in expected} == expected


def test_previous_word_decides() -> None:
    assert named_categories(["teddy", "bear", "and", "bear"])[1::2] == ["teddy bear", "bear"]
    assert named_categories([]) == []


@pytest.mark.parametrize(
    ("label", "category"),
    [
        ("dining table", "dining table"),
        ("orange", "orange"),
        ("aeroplane", "airplane"),
        ("tvmonitor", "tv"),
        ("A young boy", "person"),
        ("blue jeans", "jean"),
        ("red circle", "circle"),
        ("", ""),
    ],
)
def test_category_of_a_label(label: str, category: str) -> None:
    assert label_category(label) == category


def test_categories_name_themselves() -> None:
    """The name of a category, used in a caption, names it; the color orange is the only exception."""
    for label in ("person", "tv", "fire hydrant", "cell phone", "skis", "scissors", "potted plant", "hair drier"):
        assert named_categories(label.split())[-1] == label
