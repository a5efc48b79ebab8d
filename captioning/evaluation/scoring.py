"""Scores of the captions of any system, with bootstrap confidence intervals and a paired test."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from captioning.evaluation import metrics
from captioning.evaluation.bootstrap import bootstrap_weights, percentile_interval
from captioning.evaluation.caption_files import References, load_predictions, load_references
from captioning.evaluation.metrics import Tokens
from captioning.evaluation.tables import align_columns
from captioning.preprocessing.tokenizer import tokenize
from captioning.utils.errors import CaptioningError


class SystemScores(NamedTuple):
    """Scores of one system, and the per-caption values from which bootstrap samples are computed."""

    metrics: dict[str, float]
    bleu_statistics: np.ndarray  # (N, 10)
    per_caption: dict[str, np.ndarray]  # (N,) for each metric that is a mean over captions

    def bootstrap(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Metrics (R,) of bootstrap samples given by their weights (R, N)."""
        bleu = metrics.bleu_from_statistics(weights @ self.bleu_statistics)
        values = {f"bleu{order}": bleu[:, order - 1] for order in range(1, 5)}
        return values | {name: weights @ scores / weights.sum(axis=1) for name, scores in self.per_caption.items()}


def score_captions(
    hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]], train_captions: Sequence[Tokens] = ()
) -> SystemScores:
    """Compute all metrics except METEOR for tokenized captions."""
    statistics = metrics.bleu_statistics(hypotheses, references)
    per_caption = {
        "rouge_l": np.array(metrics.rouge_l(hypotheses, references)),
        "cider_d": np.array(metrics.CiderD(references)(hypotheses)),
    }
    bleu = metrics.bleu_from_statistics(statistics.sum(axis=0))
    values = {f"bleu{order}": float(value) for order, value in enumerate(bleu, 1)}
    values |= {name: float(scores.mean()) for name, scores in per_caption.items()}
    values |= metrics.diversity_stats(hypotheses)
    if train_captions:
        values["train_overlap"] = metrics.train_overlap(hypotheses, train_captions)
    return SystemScores(values, statistics, per_caption)


def meteor_or_warn(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> dict[str, float]:
    """METEOR, which takes about 20 seconds; without the extra ``eval`` a warning and no value."""
    score = metrics.meteor(hypotheses, references)
    if score is None:
        warnings.warn("METEOR is not computed: pip install 'captioning[eval]'", stacklevel=2)
        return {}
    return {"meteor": score}


def confidence_intervals(scores: SystemScores, weights: np.ndarray) -> dict[str, tuple[float, float]]:
    """95 % bootstrap confidence interval of each metric."""
    intervals = {name: percentile_interval(values) for name, values in scores.bootstrap(weights).items()}
    return {name: (float(low), float(high)) for name, (low, high) in intervals.items()}


def paired_bootstrap_p_values(first: SystemScores, second: SystemScores, weights: np.ndarray) -> dict[str, float]:
    """Two-sided p-values of a paired bootstrap test of the difference of two systems, for each metric."""
    second_samples = second.bootstrap(weights)
    p_values = {}
    for name, samples in first.bootstrap(weights).items():
        difference = samples - second_samples[name]
        p_values[name] = float(min(1.0, 2 * min((difference <= 0).mean(), (difference >= 0).mean())))
    return p_values


class ScoreReport(NamedTuple):
    """Scores of one system, or of two on the same images."""

    names: list[str]
    num_images: int
    systems: list[SystemScores]
    confidence_intervals: list[dict[str, tuple[float, float]]]  # per system; empty without a bootstrap
    p_values: dict[str, float]  # of the difference of two systems; otherwise empty

    def to_dict(self) -> dict[str, Any]:
        systems = [
            {"captions": name, "scores": scores.metrics, **({"confidence_intervals": intervals} if intervals else {})}
            for name, scores, intervals in zip(self.names, self.systems, self.confidence_intervals, strict=True)
        ]
        p_values = {"p_values": self.p_values} if self.p_values else {}
        return {"num_images": self.num_images, "systems": systems, **p_values}

    def to_table(self) -> str:
        rows = [["", *self.names, *(["p"] if self.p_values else [])]]
        for name in self.systems[0].metrics:
            cells = []
            for scores, intervals in zip(self.systems, self.confidence_intervals, strict=True):
                digits = 0 if name == "num_distinct_words" else 4
                interval = " [{:.4f}, {:.4f}]".format(*intervals[name]) if name in intervals else ""
                cells.append(f"{scores.metrics[name]:.{digits}f}{interval}")
            p_value = [f"{self.p_values[name]:.3f}" if name in self.p_values else ""] if self.p_values else []
            rows.append([name, *cells, *p_value])
        return f"{align_columns(rows)}\n{self.num_images} images"


def score_files(predictions: Sequence[Path], references: Path, bootstrap: bool = False, seed: int = 0) -> ScoreReport:
    """Score the captions of one system, or of two systems on the same images."""
    loaded = load_references(references)
    captions = [_align_with_references(path, loaded) for path in predictions]
    indices = sorted(captions[0])
    for path, system_captions in zip(predictions[1:], captions[1:], strict=True):
        if system_captions.keys() != captions[0].keys():
            raise CaptioningError(f"{path}: captions of other images than {predictions[0]}; compare the same images")
    tokenized = [[tokenize(caption) for caption in loaded.captions[index]] for index in indices]
    train_captions = [tokenize(caption) for caption in loaded.train_captions]
    systems = []
    for system_captions in captions:
        hypotheses = [tokenize(system_captions[index]) for index in indices]
        scores = score_captions(hypotheses, tokenized, train_captions)
        systems.append(scores._replace(metrics=scores.metrics | meteor_or_warn(hypotheses, tokenized)))
    weights = bootstrap_weights(len(indices), seed)
    return ScoreReport(
        names=[path.name for path in predictions],
        num_images=len(indices),
        systems=systems,
        confidence_intervals=[confidence_intervals(scores, weights) if bootstrap else {} for scores in systems],
        p_values=paired_bootstrap_p_values(systems[0], systems[1], weights) if len(systems) == 2 else {},
    )


def _align_with_references(path: Path, references: References) -> dict[int, str]:
    """The captions of a file by the index of their image in the references."""
    captions = load_predictions(path)
    if not captions:
        raise CaptioningError(f"{path}: no captions")
    unknown = [name for name in captions if name not in references.index_by_name]
    if unknown:
        raise CaptioningError(
            f"{path}: {len(unknown)} of {len(captions)} captions have no references (for example {unknown[0]})"
        )
    return {references.index_by_name[name]: caption for name, caption in captions.items()}
