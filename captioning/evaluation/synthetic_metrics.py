"""Metrics that require the scene of a synthetic image: caption accuracy and the pointing game."""

from collections.abc import Sequence

import numpy as np

from captioning.datasets.synthetic import grammar
from captioning.datasets.synthetic.scene import Scene
from captioning.evaluation.metrics import Tokens


def caption_accuracy(captions: Sequence[Tokens], scenes: Sequence[Scene]) -> float:
    """Compute the fraction of captions all of whose statements are true of the scene."""
    correct = [grammar.is_caption_true(" ".join(words), scene) for words, scene in zip(captions, scenes, strict=True)]
    return sum(correct) / len(correct)


def pointing_game(captions: Sequence[Tokens], attention_maps: Sequence[np.ndarray], scenes: Sequence[Scene]) -> float:
    """Compute the pointing game accuracy (Zhang et al. 2016) of color and shape words.

    The arguments are those of :func:`pointing_game_counts`. The value is 0 if there are no such words.
    """
    counts = pointing_game_counts(captions, attention_maps, scenes)
    hits, total = (counts["color"] + counts["shape"]).sum(axis=0)
    return float(hits / total) if total else 0.0


def pointing_game_counts(
    captions: Sequence[Tokens], attention_maps: Sequence[np.ndarray], scenes: Sequence[Scene]
) -> dict[str, np.ndarray]:
    """Count hits of the pointing game by word category.

    A map is a hit if the center of its maximum lies in the bounding box of the referent, extended by one cell. A word
    whose referent is not in the scene is a miss.

    Args:
        captions: words of each caption.
        attention_maps: (T, rows, columns) for each caption.
        scenes: scene of each image.

    Returns:
        for each category (N, 2): hits and words of each image.
    """
    counts = {category: np.zeros((len(scenes), 2)) for category in grammar.WORD_CATEGORIES}
    for index, (words, maps, scene) in enumerate(zip(captions, attention_maps, scenes, strict=True)):
        rows, columns = maps.shape[1:]
        for word in grammar.grounded_words(" ".join(words), scene):
            row, column = np.unravel_index(maps[word.position].argmax(), (rows, columns))
            center = (column + 0.5) / columns, (row + 0.5) / rows
            is_hit = word.referent is not None and word.referent.box.expand(1 / columns, 1 / rows).contains(*center)
            counts[word.category][index] += (is_hit, 1)
    return counts
