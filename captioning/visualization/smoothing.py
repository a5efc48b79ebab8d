"""Smoothing of attention maps for display."""

import numpy as np

_REFERENCE_SIZE = 16  # cells per side; the kernel is (1, 2, 1) / 4 on maps of this size or larger


def smooth_maps(attention_maps: np.ndarray) -> np.ndarray:
    """Smooth attention maps with a small kernel, as the figures of Xu et al. are smoothed with a Gaussian.

    Isolated cells of a fine map otherwise appear as specks. The standard deviation is 0.7 cells of a 16×16 map, 4 % of
    the image, and the same fraction of the image on coarser maps. The sum of a map does not change.

    Args:
        attention_maps: (…, rows, columns).
    """
    return _smooth_columns(_smooth_columns(attention_maps).swapaxes(-1, -2)).swapaxes(-1, -2)


def _smooth_columns(maps: np.ndarray) -> np.ndarray:
    columns = maps.shape[-1]
    weight = 0.25 * min(1, columns / _REFERENCE_SIZE) ** 2  # of each neighbor; the variance is twice this weight
    padded = np.pad(maps, [(0, 0)] * (maps.ndim - 1) + [(1, 1)], mode="edge")
    return (1 - 2 * weight) * maps + weight * (padded[..., :-2] + padded[..., 2:])
