"""How concentrated an attention map is: the smallest region that holds half of the attention, and its outline."""

import numpy as np
from PIL import Image

_UPSAMPLE = 8  # factor of the bicubic upsampling before the outline is traced
_MAX_OUTLINED_AREA = 0.4  # the outline of an almost uniform map follows noise


def half_attention_area(attention_map: np.ndarray) -> float:
    """Return the area of the smallest set of cells that holds half of the attention, as a fraction of all cells."""
    return _half_attention(attention_map)[0]


def _half_attention(attention_map: np.ndarray) -> tuple[float, float]:
    """Return the area of that set, and a weight between those of its cells and those of the others."""
    weights = np.sort(attention_map.ravel())[::-1].astype(float)
    num_cells = int(np.searchsorted(np.cumsum(weights), weights.sum() / 2 - 1e-9)) + 1
    last, following = weights[num_cells - 1], weights[min(num_cells, len(weights) - 1)]
    return num_cells / len(weights), (last + following) / 2


def half_attention_outline(attention_map: np.ndarray) -> np.ndarray:
    """Return line segments (N, 2, 2) around the smallest region that holds half of the attention.

    Each segment has two points (x, y) in fractions of the map. There are none if the region covers most of the map.
    """
    area, level = _half_attention(attention_map)
    if area > _MAX_OUTLINED_AREA:
        return np.zeros((0, 2, 2))
    rows, columns = attention_map.shape
    size = (columns * _UPSAMPLE, rows * _UPSAMPLE)
    upsampled = np.asarray(Image.fromarray(attention_map.astype(np.float32)).resize(size, Image.Resampling.BICUBIC))
    return _trace(np.pad(upsampled, 1), level)  # a region at the border gets a closed outline


def _trace(values: np.ndarray, level: float) -> np.ndarray:
    """Marching triangles: in each triangle of neighboring samples, a line separates values above and below the level.

    Args:
        values: (rows, columns) samples at the centers of equal cells, with one row and column of padding on each side.
        level: value of the line.
    """
    rows, columns = values.shape
    # Positions of the samples in fractions of the unpadded map; padding lies on its border.
    x = np.clip((np.arange(columns) - 0.5) / (columns - 2), 0, 1)
    y = np.clip((np.arange(rows) - 0.5) / (rows - 2), 0, 1)
    samples = np.stack([*np.meshgrid(x, y), values], axis=-1)  # (rows, columns, 3): x, y, value
    corners = samples[:-1, :-1], samples[:-1, 1:], samples[1:, 1:], samples[1:, :-1]
    segments = []
    for indices in ((0, 1, 2), (0, 2, 3)):
        triangles = np.stack([corners[index].reshape(-1, 3) for index in indices], axis=1)  # (N, 3, 3)
        is_above = triangles[..., 2] >= level
        for odd in range(3):
            first, second = (odd + 1) % 3, (odd + 2) % 3
            crossed = triangles[(is_above[:, odd] != is_above[:, first]) & (is_above[:, first] == is_above[:, second])]
            ends = [_crossing(crossed[:, odd], crossed[:, other], level) for other in (first, second)]
            segments.append(np.stack(ends, axis=1))
    return np.concatenate(segments)


def _crossing(start: np.ndarray, end: np.ndarray, level: float) -> np.ndarray:
    """Return the points (N, 2) between two samples (N, 3) where the interpolated value equals the level."""
    fraction = (level - start[:, 2:]) / (end[:, 2:] - start[:, 2:])
    return start[:, :2] + fraction * (end[:, :2] - start[:, :2])
