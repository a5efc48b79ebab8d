"""Calibration of the score of captions on reference captions: fit, reliability bins, and check on non-photos."""

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from captioning.caption import Caption
from captioning.captioner import Captioner
from captioning.datasets.record import Record
from captioning.datasets.synthetic.scene import render, sample_scene
from captioning.evaluation.metrics import CiderD
from captioning.models.calibration import Calibration
from captioning.preprocessing.tokenizer import tokenize
from captioning.utils.errors import CaptioningError

_NUM_BINS = 10
_PHOTO_QUANTILE = 0.05  # non-photos shall have a lower confidence than 95 % of photos
_MIN_PHOTO_FRACTION = 0.99  # of the images, for a fit that is valid for photos only
_NUM_PER_KIND = 10
_NON_PHOTO_SIDE = 256


class ReliabilityBin(NamedTuple):
    """Captions of similar confidence."""

    mean_confidence: float
    fraction_good: float
    num_captions: int


class CalibrationReport(NamedTuple):
    """A fitted calibration and how well it holds on the captions that it was fitted to."""

    calibration: Calibration
    num_captions: int
    fraction_good: float
    bins: list[ReliabilityBin]  # in order of confidence, of about equal size
    expected_calibration_error: float
    brier_score: float
    photo_fraction: float  # of the images, those that resemble photos
    fraction_of_non_photos_below: dict[str, float]  # below 95 % of photos, by kind of image

    def to_text(self) -> str:
        """A Markdown report."""
        calibration = self.calibration
        lines = [
            f"{self.num_captions} captions, of which {self.fraction_good:.1%} have CIDEr-D > "
            f"{calibration.cider_d_threshold:g}",
            f"confidence = σ({calibration.slope:.3f} · log(score) + {calibration.intercept:.3f})",
            f"expected calibration error {self.expected_calibration_error:.3f}, Brier score {self.brier_score:.3f}",
            f"uncertain below confidence {calibration.min_confidence:.3f} ({_PHOTO_QUANTILE:.0%} of photos)",
            f"{self.photo_fraction:.1%} of the images resemble photos"
            + ("; others have the confidence 0" if calibration.photos_only else ""),
            "",
            "| mean confidence | fraction good | captions |",
            "|---|---|---|",
            *(f"| {bin_.mean_confidence:.3f} | {bin_.fraction_good:.3f} | {bin_.num_captions} |" for bin_ in self.bins),
            "",
            "| images that are not photos | below 95 % of photos |",
            "|---|---|",
            *(f"| {kind} | {fraction:.0%} |" for kind, fraction in self.fraction_of_non_photos_below.items()),
        ]
        return "\n".join(lines)


def calibrate(captioner: Captioner, records: Sequence[Record], cider_d_threshold: float) -> CalibrationReport:
    """Caption images with references, fit the calibration to them, and report how well it holds.

    Args:
        captioner: with the settings for which the calibration will be valid.
        records: images with references, which must not be training images.
        cider_d_threshold: CIDEr-D above which a caption counts as good.
    """
    captions = captioner([record.image_path for record in records])
    references = [[tokenize(text) for text in record.captions] for record in records]
    cider_d = np.array(CiderD(references)([caption.words for caption in captions]))
    scores = np.array([caption.score for caption in captions])
    is_good = cider_d > cider_d_threshold
    slope, intercept = fit_logistic(np.log(np.maximum(scores, 1e-12)), is_good)
    photo_fraction = float(np.mean([caption.resembles_photo for caption in captions]))
    photos_only = photo_fraction >= _MIN_PHOTO_FRACTION
    unthresholded = Calibration(slope, intercept, cider_d_threshold, 0.0, photos_only)
    confidence = np.array([unthresholded.confidence(caption.score, caption.resembles_photo) for caption in captions])
    min_confidence = float(np.quantile(confidence, _PHOTO_QUANTILE))
    bins = reliability_bins(confidence, is_good)
    errors = [bin_.num_captions * abs(bin_.mean_confidence - bin_.fraction_good) for bin_ in bins]
    fitted = dataclasses.replace(unthresholded, min_confidence=min_confidence)
    return CalibrationReport(
        calibration=fitted,
        num_captions=len(captions),
        fraction_good=float(is_good.mean()),
        bins=bins,
        expected_calibration_error=sum(errors) / len(captions),
        brier_score=float(((confidence - is_good) ** 2).mean()),
        photo_fraction=photo_fraction,
        fraction_of_non_photos_below={
            kind: float(np.mean([_is_uncertain(caption, fitted) for caption in captioner(images)]))
            for kind, images in non_photo_images().items()
        },
    )


def _is_uncertain(caption: Caption, fitted: Calibration) -> bool:
    return dataclasses.replace(caption, calibration=fitted).is_uncertain


def fit_logistic(log_scores: np.ndarray, is_good: np.ndarray) -> tuple[float, float]:
    """Fit P(good) = σ(slope · log_score + intercept) by maximum likelihood (Platt 1999), with slope ≥ 0.

    Newton's method on the two parameters. Targets are smoothed as in Platt's paper, which keeps the fit finite if the
    scores separate the classes.

    Args:
        log_scores: (N,).
        is_good: (N,) bool.
    """
    num_good, num_bad = int(is_good.sum()), int((~is_good).sum())
    if not num_good or not num_bad:
        raise CaptioningError(
            f"{num_good} of {len(is_good)} captions are good, so there is nothing to fit; change the threshold"
        )
    targets = np.where(is_good, (num_good + 1) / (num_good + 2), 1 / (num_bad + 2))
    inputs = np.stack((log_scores - log_scores.mean(), np.ones_like(log_scores)), axis=1)  # (N, 2)
    parameters = np.array([0.0, math.log(num_good / num_bad)])
    for _ in range(100):
        probs = 1 / (1 + np.exp(-np.clip(inputs @ parameters, -30, 30)))
        gradient = inputs.T @ (probs - targets)
        hessian = (inputs * (probs * (1 - probs))[:, None]).T @ inputs + 1e-6 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        parameters = parameters - step / max(1, np.abs(step).max())  # a step of at most 1 does not overshoot
        if np.abs(step).max() < 1e-8:
            break
    slope = max(float(parameters[0]), 0.0)
    offset = float(parameters[1]) if slope else math.log(num_good / num_bad)
    return slope, offset - slope * float(log_scores.mean())


def reliability_bins(confidence: np.ndarray, is_good: np.ndarray, num_bins: int = _NUM_BINS) -> list[ReliabilityBin]:
    """Divide captions (N,) by their confidence into bins of about equal size."""
    order = np.argsort(confidence, kind="stable")
    return [
        ReliabilityBin(float(confidence[index].mean()), float(is_good[index].mean()), len(index))
        for index in np.array_split(order, min(num_bins, len(order)))
    ]


def non_photo_images() -> dict[str, list[Image.Image]]:
    """Images that are not photos, by kind: noise, black, uniform gray, and synthetic scenes."""
    rng = np.random.default_rng(0)
    shape = (_NON_PHOTO_SIDE, _NON_PHOTO_SIDE, 3)
    noise = [Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)) for _ in range(_NUM_PER_KIND)]
    levels = np.linspace(0, 255, _NUM_PER_KIND).round().astype(int).tolist()
    scene_rng = random.Random(0)
    return {
        "noise": noise,
        "black": [Image.new("RGB", shape[:2])],
        "uniform gray": [Image.new("RGB", shape[:2], (level,) * 3) for level in levels[1:]],
        "synthetic scenes": [render(sample_scene(scene_rng), _NON_PHOTO_SIDE) for _ in range(_NUM_PER_KIND)],
    }
