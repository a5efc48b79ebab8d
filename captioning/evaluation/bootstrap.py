"""Bootstrap over images: resampling weights and percentile intervals."""

import numpy as np

NUM_RESAMPLES = 1000


def bootstrap_weights(num_images: int, seed: int = 0) -> np.ndarray:
    """Sample how often each image occurs in each bootstrap resample of the set: (R, N)."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(num_images, np.full(num_images, 1 / num_images), size=NUM_RESAMPLES)


def percentile_interval(resampled: np.ndarray) -> np.ndarray:
    """Return the 95 % percentile interval (2, …) of values (R, …) of the resamples."""
    return np.quantile(resampled, (0.025, 0.975), axis=0)
