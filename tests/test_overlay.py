import numpy as np
import pytest
from PIL import Image

from captioning import overlay
from captioning.images import Box

WHOLE = Box(0, 0, 1, 1)


def one_cell(row: int, column: int) -> np.ndarray:
    weights = np.zeros((4, 4), np.float32)
    weights[row, column] = 1
    return weights


def brightest(image: Image.Image) -> tuple[float, float]:
    """Where the light is, in fractions of width and height."""
    grey = np.asarray(image.convert("L"), dtype=float)
    rows, columns = np.nonzero(grey > grey.max() - 10)
    return columns.mean() / image.width, rows.mean() / image.height


@pytest.mark.parametrize(("row", "column"), [(0, 0), (1, 2), (3, 3)])
def test_light_falls_where_the_map_is_high(row: int, column: int) -> None:
    lit = overlay.spotlight(Image.new("RGB", (160, 80), "white"), one_cell(row, column), WHOLE)
    assert lit.size == (160, 80)
    assert brightest(lit) == pytest.approx(((column + 0.5) / 4, (row + 0.5) / 4), abs=0.06)


def test_a_cropped_map_lies_on_the_middle_of_the_whole_photo() -> None:
    lit = overlay.spotlight(Image.new("RGB", (200, 100), "white"), one_cell(0, 0), Box(0.25, 0, 0.75, 1))
    assert brightest(lit) == pytest.approx((0.25 + 0.5 / 8, 0.5 / 4), abs=0.06)
    dim = np.asarray(lit)[:, :40]
    assert dim.max() < 80, "what the model did not see stays dim"


def test_a_padded_map_is_cut_to_the_photo() -> None:
    lit = overlay.spotlight(Image.new("RGB", (200, 100), "white"), one_cell(2, 3), Box(0, -0.5, 1, 1.5))
    assert lit.size == (200, 100)
    assert brightest(lit) == pytest.approx((3.5 / 4, 0.75), abs=0.08)


def test_a_panel_for_every_word_and_one_for_the_photo() -> None:
    photo = Image.new("RGB", (300, 200), "white")
    words = ["a", "dog", "runs"]
    maps = np.stack([one_cell(0, 0), one_cell(0, 3), one_cell(3, 0)])
    sheet = overlay.panels(photo, words, maps, WHOLE, panel_width=150, columns=2)
    assert sheet.width == 2 * 150 + 3 * 12
    panel_height = 100
    tops = [sheet.height - (2 - row) * (panel_height + 30 + 12) for row in (0, 1)]
    boxes = [(12 + column * 162, top, 12 + column * 162 + 150, top + panel_height) for top in tops for column in (0, 1)]
    first, *rest = (sheet.crop(box) for box in boxes)
    assert np.asarray(first).min() > 250, "the first panel is the photo as it is"
    for panel, (x, y) in zip(rest, [(0.125, 0.125), (0.875, 0.125), (0.125, 0.875)], strict=True):
        assert brightest(panel) == pytest.approx((x, y), abs=0.06)  # each word has its own map


def test_words_are_written(tmp_path) -> None:
    photo, maps = Image.new("RGB", (50, 50), "white"), np.ones((1, 2, 2), np.float32)
    sheets = [np.asarray(overlay.panels(photo, [word], maps, WHOLE)) for word in ("dog", "cat")]
    assert (sheets[0] != sheets[1]).any()


def test_a_long_word_and_a_long_sentence_stay_inside() -> None:
    words = ["pneumonoultramicroscopicsilicovolcanoconiosis"] * 9
    sheet = overlay.panels(Image.new("RGB", (50, 400), "white"), words, np.ones((9, 2, 2), np.float32), WHOLE, 80, 4)
    border = np.asarray(sheet)[:, -6:]
    assert border.min() == 255, "nothing is written into the margin"


def test_a_flat_map_lights_everything() -> None:
    lit = overlay.spotlight(Image.new("RGB", (40, 40), "white"), np.full((4, 4), 1 / 16), WHOLE)
    assert np.asarray(lit).min() > 250
