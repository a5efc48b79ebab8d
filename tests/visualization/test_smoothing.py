import numpy as np
import pytest

from captioning.visualization.smoothing import smooth_maps


def test_kernel_of_a_fine_map() -> None:
    attention_map = np.zeros((16, 16))
    attention_map[8, 8] = 1
    expected = np.outer((0.25, 0.5, 0.25), (0.25, 0.5, 0.25))
    assert smooth_maps(attention_map)[7:10, 7:10] == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 7, 12), (0, 4, 4), (1, 1, 1)])
def test_the_sum_of_a_map_does_not_change(shape: tuple[int, ...]) -> None:
    attention_maps = np.random.default_rng(0).random(shape)
    smoothed = smooth_maps(attention_maps)
    assert smoothed.shape == shape
    assert smoothed.sum((1, 2)) == pytest.approx(attention_maps.sum((1, 2)))


def test_standard_deviation_is_a_fraction_of_the_image() -> None:
    def deviation(size: int) -> float:
        """Standard deviation along the columns, in fractions of the map."""
        attention_map = np.zeros((size, size))
        attention_map[size // 2, size // 2] = 1
        columns = np.arange(size) - size // 2
        return float((smooth_maps(attention_map).sum(0) @ columns**2) ** 0.5 / size)

    assert deviation(16) == pytest.approx(0.5**0.5 / 16)
    assert deviation(8) == pytest.approx(deviation(16))
    assert deviation(4) == pytest.approx(deviation(16))
