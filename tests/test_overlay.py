import numpy as np
import pytest
from PIL import Image

from captioning import overlay
from captioning.errors import CaptioningError
from captioning.images import Box
from captioning.overlay import Painter

WHOLE = Box(0, 0, 1, 1)


def one_cell(row: int, column: int) -> np.ndarray:
    """(1, 4, 4), the map of one word."""
    weights = np.zeros((1, 4, 4), np.float32)
    weights[0, row, column] = 1
    return weights


def white(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), "white")


def brightest(image: Image.Image) -> tuple[float, float]:
    """Where the light is, in fractions of width and height."""
    grey = np.asarray(image.convert("L"), dtype=float)
    rows, columns = np.nonzero(grey > grey.max() - 10)
    return columns.mean() / image.width, rows.mean() / image.height


@pytest.mark.parametrize(("row", "column"), [(0, 0), (1, 2), (3, 3)])
def test_light_falls_where_the_map_is_high(row: int, column: int) -> None:
    lit = Painter(one_cell(row, column), WHOLE)(white(160, 80), 0)
    assert lit.size == (160, 80)
    assert brightest(lit) == pytest.approx(((column + 0.5) / 4, (row + 0.5) / 4), abs=0.07)


def test_the_light_is_smooth() -> None:
    lit = np.asarray(Painter(one_cell(1, 1), WHOLE)(white(400, 400), 0).convert("L"), dtype=float)
    assert np.abs(np.diff(lit, axis=0)).max() < 8
    assert np.abs(np.diff(lit, axis=1)).max() < 8
    assert lit.max() - lit.min() > 180


def test_a_cropped_map_lies_on_the_middle_of_the_whole_photo() -> None:
    lit = Painter(one_cell(0, 0), Box(0.25, 0, 0.75, 1))(white(200, 100), 0)
    assert brightest(lit) == pytest.approx((0.25 + 0.5 / 8, 0.5 / 4), abs=0.06)
    dim = np.asarray(lit)[:, :40]
    assert dim.max() < 80, "what the model did not see stays dim"


def test_a_padded_map_is_cut_to_the_photo() -> None:
    lit = Painter(one_cell(2, 3), Box(0, -0.5, 1, 1.5))(white(200, 100), 0)
    assert lit.size == (200, 100)
    assert brightest(lit) == pytest.approx((3.5 / 4, 0.75), abs=0.08)


def test_a_flat_map_lights_everything() -> None:
    lit = Painter(np.full((1, 4, 4), 1 / 16), WHOLE)(white(40, 40), 0)
    assert np.asarray(lit).min() > 250


def test_the_photo_is_left_as_it_was() -> None:
    photo = white(40, 40)
    for field in (None, (0.5, 0.5)):
        Painter(one_cell(0, 0), WHOLE, field)(photo, 0)
    assert np.asarray(photo).min() == 255


@pytest.mark.parametrize("colours", overlay.COLOURS)
def test_colours_and_opacity(colours: str) -> None:
    photo = Image.new("RGB", (80, 80), (90, 160, 90))
    original = np.asarray(photo, dtype=int)

    def painted(opacity: float) -> np.ndarray:
        return np.asarray(Painter(one_cell(1, 1), WHOLE, colours=colours, opacity=opacity)(photo, 0), dtype=int)

    np.testing.assert_array_equal(painted(0), original)
    low, high = (40 + 10, 40 + 10), (30, 30)
    table = overlay.COLOURS[colours]
    full = painted(1)
    assert full[70, 70] == pytest.approx(table[0][:3], abs=2), "opaque where the map is low"
    expected = original[high] if colours == "light" else table[-1][:3]
    assert full[high] == pytest.approx(expected, abs=8)
    half = painted(0.5)
    assert (np.abs(half - original) <= np.abs(full - original) + 1).all()
    assert (half[low] != full[low]).any()


def test_colours_and_opacity_that_there_are_not() -> None:
    with pytest.raises(CaptioningError, match="unknown colours 'jet'; choose one of light, heat, viridis"):
        Painter(one_cell(0, 0), WHOLE, colours="jet")
    for opacity in (-0.1, 1.1, float("nan")):
        with pytest.raises(CaptioningError, match="opacity"):
            Painter(one_cell(0, 0), WHOLE, opacity=opacity)
    with pytest.raises(CaptioningError, match="panel width 0: take 16 to 4000"):
        overlay.panels(white(9, 9), ["a"], Painter(one_cell(0, 0), WHOLE), panel_width=0)


class TestHardLooks:
    MAPS = np.concatenate([one_cell(0, 0), one_cell(3, 3), one_cell(0, 3)])

    def painted(self, word: int, window: Box = WHOLE, size: tuple[int, int] = (400, 400)) -> np.ndarray:
        return np.asarray(Painter(self.MAPS, window, (0.5, 0.5))(white(*size), word), dtype=int)

    def test_the_field_is_lit_and_the_rest_dim(self) -> None:
        first = self.painted(0)
        assert first[130, 130].min() == 255, "within half of the field's side from the middle of the cell"
        assert first[170, 170].max() == 255 - round(0.75 * 255)
        assert first[130, 200].max() < 80

    def test_the_cell_is_framed_and_its_middle_marked(self) -> None:
        first = self.painted(0)
        yellow = (255, 213, 74)
        for place in ((50, 50), (50, 100), (100, 50)):
            assert first[place] == pytest.approx(yellow, abs=70), "its edges are smooth"
        assert first[70, 70].min() == 255

    def test_a_path_leads_from_word_to_word(self) -> None:
        first, second, third = (self.painted(word)[200, 200] for word in range(3))
        assert first.max() < 80
        assert tuple(second) == (255, 213, 74)
        assert tuple(third) == (255, 213, 74), "the way so far stays"

    def test_lines_show_on_any_photo(self) -> None:
        photo = Image.new("RGB", (400, 400), (255, 213, 74))
        painted = np.asarray(Painter(self.MAPS, WHOLE, (0.5, 0.5))(photo, 0).convert("L"), dtype=int)
        assert painted[70, 85:115].min() < 30, "the edge of the cell has a dark rim"

    def test_a_place_beyond_the_photo(self) -> None:
        """A padded picture can be looked at where the photo is not."""
        painted = self.painted(0, window=Box(0, -2, 1, 3))
        assert painted.shape == (400, 400, 3)
        assert painted.max() < 80

    def test_it_lies_on_its_window_at_any_size(self) -> None:
        for size in ((400, 200), (3000, 1500)):
            painted = self.painted(1, Box(0.25, 0, 0.75, 1), size)
            assert tuple(painted[int(size[1] * 7 / 8), int(size[0] * (0.25 + 7 / 16))]) == (255, 213, 74)


def test_a_panel_for_every_word_and_one_for_the_photo() -> None:
    words = ["a", "dog", "runs"]
    maps = np.concatenate([one_cell(0, 0), one_cell(0, 3), one_cell(3, 0)])
    sheet = overlay.panels(white(300, 200), words, Painter(maps, WHOLE), panel_width=150, columns=2)
    assert sheet.width == 2 * 150 + 3 * 12
    panel_height = 100
    tops = [sheet.height - (2 - row) * (panel_height + 30 + 12) for row in (0, 1)]
    boxes = [(12 + column * 162, top, 12 + column * 162 + 150, top + panel_height) for top in tops for column in (0, 1)]
    first, *rest = (sheet.crop(box) for box in boxes)
    assert np.asarray(first).min() > 250, "the first panel is the photo as it is"
    for panel, (x, y) in zip(rest, [(0.125, 0.125), (0.875, 0.125), (0.125, 0.875)], strict=True):
        assert brightest(panel) == pytest.approx((x, y), abs=0.06)  # each word has its own map


def flat(words: int) -> Painter:
    return Painter(np.ones((words, 2, 2), np.float32), WHOLE)


def test_words_are_written() -> None:
    sheets = [np.asarray(overlay.panels(white(50, 50), [word], flat(1))) for word in ("dog", "cat")]
    assert (sheets[0] != sheets[1]).any()


def test_a_long_word_and_a_long_sentence_stay_inside() -> None:
    words = ["pneumonoultramicroscopicsilicovolcanoconiosis"] * 9
    sheet = overlay.panels(white(50, 400), words, flat(9), 80, 4)
    border = np.asarray(sheet)
    assert border[:, -6:].min() == 255, "nothing is written into the margin"
    assert border[:, :6].min() == 255
    for frame in overlay.animation(white(100, 400), words, flat(9)):
        assert np.asarray(frame)[400:, -6:].min() == 255


def test_what_is_written_from_the_right_begins_at_the_right() -> None:
    frames = [next(overlay.animation(white(400, 20), words.split(), flat(2))) for words in ("dog a", "כלב א")]
    left, right = (np.nonzero(np.asarray(frame)[20:].min((0, 2)) < 128)[0] for frame in frames)
    assert left.max() < 200 < right.min()


@pytest.mark.parametrize("shade", ["white", "black", "grey"])
@pytest.mark.parametrize("size", [(640, 480), (48, 64)])
def test_a_word_is_readable_on_any_photo(shade: str, size: tuple[int, int]) -> None:
    (picture,) = overlay.labelled(Image.new("RGB", size, shade), ["dog"], flat(1))
    assert picture.size == size, "at the photo's own size"
    lower = np.asarray(picture.convert("L"))[size[1] // 2 :]
    assert lower.max() > 240, "the letters are white"
    assert (lower < 70).mean() > 0.002, "on a dark plate"


def test_a_label_does_not_hide_what_was_looked_at() -> None:
    high, low = (
        np.asarray(next(overlay.labelled(white(400, 400), ["dog"], Painter(one_cell(row, 0), WHOLE))), dtype=int)
        for row in (0, 3)
    )
    assert high[340:, :30].max(axis=(1, 2)).min() < 80, "at the bottom"
    assert low[340:, :30].min() > 80, "or at the top, if the bottom is lit"


def test_an_animation_goes_through_the_words() -> None:
    maps = np.concatenate([one_cell(0, 0), one_cell(3, 3)])
    frames = list(overlay.animation(white(900, 600), ["red", "dog"], Painter(maps, WHOLE)))
    assert [frame.size for frame in frames] == [(480, 320 + 30 + 12)] * 3
    assert np.asarray(frames[0])[:320].min() == 255
    for frame, place in zip(frames[1:], (0.125, 0.875), strict=True):
        assert brightest(frame.crop((0, 0, 480, 320))) == pytest.approx((place, place), abs=0.06)
    marks = [np.nonzero((np.asarray(frame)[320:] == (255, 213, 74)).all(2))[1] for frame in frames]
    assert len(marks[0]) == 0
    assert marks[1].mean() < marks[2].mean(), "the word that is said is marked"


def test_a_caption_without_words() -> None:
    nothing = Painter(np.zeros((0, 4, 4), np.float32), WHOLE)
    assert overlay.panels(white(100, 50), [], nothing).width == 200 + 2 * 12
    assert len(list(overlay.animation(white(100, 50), [], nothing))) == 1
    assert list(overlay.labelled(white(100, 50), [], nothing)) == []


def test_a_photo_smaller_than_a_word() -> None:
    (picture,) = overlay.labelled(white(20, 1), ["dog"], flat(1))
    assert picture.size == (20, 1)
    assert overlay.panels(white(1, 3), ["dog"], flat(1)).width > 400
