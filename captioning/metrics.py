"""Scores of whole sets of captions, never averaged over batches."""

import warnings
from collections.abc import Sequence

import numpy as np

from captioning.datasets import statements
from captioning.datasets.scenes import Scene


def bleu(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> list[float]:
    """Corpus BLEU-1 to BLEU-4 of tokenised captions, each against all references of its picture."""
    from nltk.translate.bleu_score import corpus_bleu

    orders = [tuple(1 / order for _ in range(order)) for order in range(1, 5)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a set without one common 4-gram scores 0, which says it all
        return [float(score) for score in corpus_bleu(references, hypotheses, weights=orders)]


def truth(captions: Sequence[Sequence[str]], scenes: Sequence[Scene]) -> float:
    """Share of captions of drawn scenes whose every statement is true."""
    true = [statements.is_true(" ".join(words), scene) for words, scene in zip(captions, scenes, strict=True)]
    return sum(true) / len(true)


def pointing(captions: Sequence[Sequence[str]], maps: Sequence[np.ndarray], scenes: Sequence[Scene]) -> float:
    """Share of colour and shape words whose map points at their object.

    A map points where it is highest; that cell's middle must lie in the object's box, give or take one cell. A word for
    an object that is not there points nowhere.

    Args:
        captions: the words of each caption.
        maps: for each caption (T, rows, columns).
        scenes: the drawn scenes.
    """
    hits, total = 0, 0
    for words, grids, scene in zip(captions, maps, scenes, strict=True):
        for phrase in statements.phrases(" ".join(words), scene):
            for position in range(phrase.first, phrase.last + 1):
                if words[position] not in statements.CONTENT_WORDS:
                    continue
                rows, columns = grids.shape[1:]
                row, column = np.unravel_index(grids[position].argmax(), (rows, columns))
                middle = (column + 0.5) / columns, (row + 0.5) / rows
                total += 1
                hits += phrase.thing is not None and phrase.thing.box.grown(1 / columns, 1 / rows).contains(*middle)
    return hits / total if total else 0.0
