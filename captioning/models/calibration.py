"""Calibration of the score of a caption: the probability that the caption is good."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Logistic map from the score of a caption to its confidence, fitted by ``captioning calibrate``.

    A caption is good if its CIDEr-D against the references of the image exceeds ``cider_d_threshold``:

        P(good) = σ(slope · log(score) + intercept)

    The score is the geometric mean of the token probabilities, so ``slope`` acts as an inverse temperature. The fit is
    valid for the generation settings of the model file.

    Args:
        slope: factor of the log-score, at least 0.
        intercept: log-odds at score 1.
        cider_d_threshold: CIDEr-D above which a caption counts as good.
        min_confidence: captions of lower confidence are reported as uncertain.
        photos_only: the fit is valid for photos only; images that do not resemble photos have the confidence 0.
    """

    slope: float
    intercept: float
    cider_d_threshold: float
    min_confidence: float
    photos_only: bool = False

    def confidence(self, score: float, resembles_photo: bool = True) -> float:
        """P(good) of a caption with this score in [0, 1]."""
        if self.photos_only and not resembles_photo:
            return 0.0
        log_odds = self.slope * math.log(max(score, 1e-12)) + self.intercept
        return (1 + math.tanh(log_odds / 2)) / 2  # the logistic function, without overflow
