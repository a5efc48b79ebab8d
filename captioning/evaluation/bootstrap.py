"""Bootstrap over images: resampling weights, percentile intervals, and ratios of sums with their interval."""

import functools
from typing import Any, NamedTuple

import numpy as np

NUM_RESAMPLES = 1000


class RatioWithCI(NamedTuple):
    """A ratio of sums over images, such as a mean over words, with its 95 % bootstrap confidence interval."""

    mean: np.ndarray
    ci_low: np.ndarray
    ci_high: np.ndarray

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.ci_low:.3f}, {self.ci_high:.3f}]"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {field: np.asarray(value).tolist() for field, value in self._asdict().items()}


def bootstrap_weights(num_images: int, seed: int = 0) -> np.ndarray:
    """Sample how often each image occurs in each bootstrap resample of the set: (R, N)."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(num_images, np.full(num_images, 1 / num_images), size=NUM_RESAMPLES)


def percentile_interval(resampled: np.ndarray) -> np.ndarray:
    """Return the 95 % percentile interval (2, …) of values (R, …) of the resamples."""
    return np.quantile(resampled, (0.025, 0.975), axis=0)


def ratio_with_ci(sums: np.ndarray, counts: np.ndarray) -> RatioWithCI:
    """Return a ratio of two sums over images, Σ sums / Σ counts, with its 95 % bootstrap confidence interval.

    If ``counts`` is the number of words of each image, the ratio is the mean over words. The bootstrap resamples images
    instead of words, because the words of an image are not independent.

    Args:
        sums: (N, …), sum of each image.
        counts: (N,), count of each image; images with count 0 are ignored.
    """
    sums, counts = sums[counts > 0], counts[counts > 0]
    weights = _cached_weights(len(counts))
    samples = ((weights @ sums).T / (weights @ counts)).T
    return RatioWithCI(sums.sum(axis=0) / counts.sum(), *percentile_interval(samples))


_cached_weights = functools.lru_cache(maxsize=8)(bootstrap_weights)  # the same samples for all metrics
