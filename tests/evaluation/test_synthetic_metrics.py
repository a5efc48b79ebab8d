import numpy as np

from captioning.datasets.synthetic.scene import Scene, SceneObject
from captioning.evaluation import synthetic_metrics

RED = SceneObject("circle", "red", "small", 0.2, 0.2, 0.08)
BLUE = SceneObject("square", "blue", "large", 0.8, 0.5, 0.13)
SCENE = Scene((RED, BLUE), (240, 240, 240))
ON_RED, ON_BLUE, BACKGROUND = (1, 1), (4, 6), (7, 0)  # cells of an 8 × 8 grid


def maps_with_maximum_at(*cells: tuple[int, int]) -> np.ndarray:
    maps = np.full((len(cells), 8, 8), 0.001)
    for index, cell in enumerate(cells):
        maps[index][cell] = 1
    return maps


def test_caption_accuracy() -> None:
    captions = [
        "a red circle left of a blue square".split(),
        "a red circle right of a blue square".split(),
    ]
    assert synthetic_metrics.caption_accuracy(captions, [SCENE, SCENE]) == 0.5


def test_pointing_game_counts_color_and_shape_words() -> None:
    words = ["a", "red", "circle", "and", "a", "blue", "square"]
    correct = maps_with_maximum_at(BACKGROUND, ON_RED, ON_RED, BACKGROUND, BACKGROUND, ON_BLUE, ON_BLUE)
    assert synthetic_metrics.pointing_game([words], [correct], [SCENE]) == 1
    shifted_by_one_word = np.roll(correct, 1, axis=0)
    assert synthetic_metrics.pointing_game([words], [shifted_by_one_word], [SCENE]) == 0.5
    swapped = maps_with_maximum_at(BACKGROUND, ON_BLUE, ON_BLUE, BACKGROUND, BACKGROUND, ON_RED, ON_RED)
    assert synthetic_metrics.pointing_game([words], [swapped], [SCENE]) == 0


def test_pointing_game_counts_by_category_and_image() -> None:
    captions = [
        "a small red circle is at the top".split(),  # the position is wrong, but the word still refers to the circle
        "a blue square left of a red circle".split(),
    ]
    maps = [
        maps_with_maximum_at(BACKGROUND, BACKGROUND, ON_RED, ON_RED, BACKGROUND, BACKGROUND, BACKGROUND, ON_RED),
        maps_with_maximum_at(BACKGROUND, ON_BLUE, ON_RED, BACKGROUND, BACKGROUND, BACKGROUND, ON_RED, ON_BLUE),
    ]
    counts = synthetic_metrics.pointing_game_counts(captions, maps, [SCENE, SCENE])
    assert {category: values.tolist() for category, values in counts.items()} == {
        "color": [[1, 1], [2, 2]],
        "shape": [[1, 1], [0, 2]],
        "size": [[0, 1], [0, 0]],
        "position": [[1, 1], [0, 0]],
    }
    assert synthetic_metrics.pointing_game(captions, maps, [SCENE, SCENE]) == 4 / 6


def test_pointing_game_tolerance_is_one_cell() -> None:
    words = ["a", "red", "circle"]
    for column, is_hit in ((1, True), (2, True), (3, False)):
        maps = maps_with_maximum_at((1, column), (1, column), (1, column))
        assert synthetic_metrics.pointing_game([words], [maps], [SCENE]) == is_hit


def test_word_for_an_absent_object_is_a_miss() -> None:
    maps = maps_with_maximum_at((1, 1), (1, 1), (1, 1))
    assert synthetic_metrics.pointing_game([["a", "green", "circle"]], [maps], [SCENE]) == 0
    assert synthetic_metrics.pointing_game([["nonsense"]], [maps_with_maximum_at((1, 1))], [SCENE]) == 0
