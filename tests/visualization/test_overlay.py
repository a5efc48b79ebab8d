import numpy as np
import pytest
from PIL import Image

from captioning.preprocessing.image import Box
from captioning.utils.errors import CaptioningError
from captioning.visualization import colormaps, sheet
from captioning.visualization.overlay import AttentionRenderer

FULL_IMAGE = Box(0, 0, 1, 1)
DARK = 255 - round(colormaps.DEFAULT_OPACITY * 255)  # a white image without attention


def one_cell(row: int, column: int) -> np.ndarray:
    """Attention map (1, 4, 4) with all weight in one cell."""
    attention_maps = np.zeros((1, 4, 4), np.float32)
    attention_maps[0, row, column] = 1
    return attention_maps


def white(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), "white")


def brightest(image: Image.Image) -> tuple[float, float]:
    """Center of the brightest pixels, in fractions of width and height."""
    gray = np.asarray(image.convert("L"), dtype=float)
    rows, columns = np.nonzero(gray > gray.max() - 10)
    return columns.mean() / image.width, rows.mean() / image.height


@pytest.mark.parametrize(("row", "column"), [(0, 0), (1, 2), (3, 3)])
def test_spotlight_is_at_the_attended_cell(row: int, column: int) -> None:
    rendered = AttentionRenderer(one_cell(row, column), FULL_IMAGE)(white(160, 80), 0)
    assert rendered.size == (160, 80)
    assert brightest(rendered) == pytest.approx(((column + 0.5) / 4, (row + 0.5) / 4), abs=0.07)


def test_spotlight_is_smooth() -> None:
    rendered = np.asarray(AttentionRenderer(one_cell(1, 1), FULL_IMAGE)(white(400, 400), 0).convert("L"), dtype=float)
    inside, outside = rendered[130:170, 130:170], rendered[230:]  # without the outline
    for region in (inside, outside):
        assert np.abs(np.diff(region, axis=0)).max() < 8
        assert np.abs(np.diff(region, axis=1)).max() < 8
    assert inside.max() == 255
    assert outside.min() == DARK


def test_map_of_a_center_crop() -> None:
    rendered = AttentionRenderer(one_cell(0, 0), Box(0.25, 0, 0.75, 1))(white(200, 100), 0)
    assert brightest(rendered) == pytest.approx((0.25 + 0.5 / 8, 0.5 / 4), abs=0.06)
    outside = np.asarray(rendered)[:, :40]
    assert outside.max() == DARK, "outside the crop box the image is dark"


def test_map_of_a_padded_image() -> None:
    rendered = AttentionRenderer(one_cell(2, 3), Box(0, -0.5, 1, 1.5))(white(200, 100), 0)
    assert rendered.size == (200, 100)
    assert brightest(rendered) == pytest.approx((3.5 / 4, 0.75), abs=0.08)


def test_uniform_map_leaves_the_image_bright() -> None:
    rendered = AttentionRenderer(np.full((1, 4, 4), 1 / 16), FULL_IMAGE)(white(40, 40), 0)
    assert np.asarray(rendered).min() > 250


def test_input_image_is_not_modified() -> None:
    image = white(40, 40)
    for receptive_field in (None, (0.5, 0.5)):
        AttentionRenderer(one_cell(0, 0), FULL_IMAGE, receptive_field)(image, 0)
    assert np.asarray(image).min() == 255


@pytest.mark.parametrize("colormap", colormaps.COLORMAPS)
def test_colormap_and_opacity(colormap: str) -> None:
    image = Image.new("RGB", (80, 80), (90, 160, 90))
    original = np.asarray(image, dtype=int)

    def render(opacity: float) -> np.ndarray:
        renderer = AttentionRenderer(one_cell(1, 1), FULL_IMAGE, colormap=colormap, opacity=opacity)
        return np.asarray(renderer(image, 0), dtype=int)

    low, high = (70, 70), (30, 30)
    stops = colormaps.COLORMAPS[colormap]
    full = render(1)
    expected_low = (0, 0, 0) if colormap == "spotlight" else original[low]
    assert full[low] == pytest.approx(expected_low, abs=2), "only spotlight changes regions without attention"
    expected = original[high] if colormap == "spotlight" else stops[-1][:3]
    assert full[high] == pytest.approx(expected, abs=8)
    none, half = render(0), render(0.5)
    changed = low if colormap == "spotlight" else high
    assert none[changed] == pytest.approx(original[changed])
    assert (np.abs(half[changed] - original[changed]) < np.abs(full[changed] - original[changed])).any()


def test_spotlight_is_visible_on_a_night_photo() -> None:
    image = Image.new("RGB", (80, 80), (10, 10, 18))
    rendered = np.asarray(AttentionRenderer(one_cell(1, 1), FULL_IMAGE)(image, 0).convert("L"), dtype=int)
    assert rendered[30, 30] - rendered[70, 70] > 80


def test_outline_encloses_half_of_the_attention() -> None:
    attention_map = np.full((1, 16, 16), 0.001, np.float32)
    attention_map[0, 4:8, 8:12] = 0.5
    rendered = np.asarray(AttentionRenderer(attention_map, FULL_IMAGE, colormap="hot", opacity=0)(white(320, 320), 0))
    rows, columns = np.nonzero(rendered.min(2) < 200)
    assert (rows.min() / 320, rows.max() / 320) == pytest.approx((4 / 16, 8 / 16), abs=0.04)
    assert (columns.min() / 320, columns.max() / 320) == pytest.approx((8 / 16, 12 / 16), abs=0.04)


@pytest.mark.parametrize("receptive_field", [None, (0.5, 0.4)])
@pytest.mark.parametrize("crop_box", [FULL_IMAGE, Box(0.25, 0, 0.75, 1), Box(0, -0.5, 1, 1.5)])
def test_rows_equal_those_of_the_whole_image(crop_box: Box, receptive_field: tuple[float, float] | None) -> None:
    attention_maps = np.random.default_rng(0).dirichlet(np.full(16, 0.3), 2).reshape(2, 4, 4)
    renderer = AttentionRenderer(attention_maps, crop_box, receptive_field)
    image = Image.linear_gradient("L").resize((300, 200)).convert("RGB")
    bands = [np.asarray(renderer.render_rows(image, 1, top, min(top + 64, 200)), int) for top in range(0, 200, 64)]
    difference = np.abs(np.concatenate(bands) - np.asarray(renderer(image, 1), int))
    assert np.percentile(difference, 99.5) <= 2  # the antialiasing of a few pixels of a line may differ


def test_invalid_settings() -> None:
    with pytest.raises(CaptioningError, match="unknown colormap 'jet'; choose one of spotlight, hot, viridis"):
        AttentionRenderer(one_cell(0, 0), FULL_IMAGE, colormap="jet")
    for opacity in (-0.1, 1.1, float("nan")):
        with pytest.raises(CaptioningError, match="opacity must be in"):
            AttentionRenderer(one_cell(0, 0), FULL_IMAGE, opacity=opacity)
    with pytest.raises(CaptioningError, match=r"panel_width must be in \[16, 4000\] pixels, got 0"):
        sheet.render_panels(white(9, 9), ["a"], uniform_renderer(1), panel_width=0, probs=[1])


class TestHardAttention:
    ATTENTION_MAPS = np.concatenate([one_cell(0, 0), one_cell(3, 3), one_cell(0, 3)])

    def render(self, word_index: int, crop_box: Box = FULL_IMAGE, size: tuple[int, int] = (400, 400)) -> np.ndarray:
        return np.asarray(
            AttentionRenderer(self.ATTENTION_MAPS, crop_box, (0.5, 0.5))(white(*size), word_index), dtype=int
        )

    def test_receptive_field_is_bright_and_the_rest_dark(self) -> None:
        first = self.render(0)
        assert first[130, 130].min() == 255, "inside the receptive field"
        assert first[170, 170].max() == DARK
        assert first[130, 200].max() == DARK

    def test_cell_has_an_outline_and_a_center_mark(self) -> None:
        first = self.render(0)
        yellow = (255, 213, 74)
        for pixel in ((50, 50), (50, 100), (100, 50)):
            assert first[pixel] == pytest.approx(yellow, abs=70)  # lines are antialiased
        assert first[70, 70].min() == 255

    def test_scanpath_connects_the_words(self) -> None:
        first, second, third = (self.render(word)[200, 200] for word in range(3))
        assert first.max() == DARK
        assert tuple(second) == (255, 213, 74)
        assert tuple(third) == (255, 213, 74), "earlier segments stay visible"

    def test_lines_have_a_dark_border(self) -> None:
        image = Image.new("RGB", (400, 400), (255, 213, 74))
        rendered = AttentionRenderer(self.ATTENTION_MAPS, FULL_IMAGE, (0.5, 0.5))(image, 0)
        assert np.asarray(rendered.convert("L"), dtype=int)[70, 85:115].min() < 30

    def test_location_outside_the_image(self) -> None:
        """Attention may select the padding of a padded image."""
        rendered = self.render(0, crop_box=Box(0, -2, 1, 3))
        assert rendered.shape == (400, 400, 3)
        assert rendered.max() == DARK

    def test_location_respects_the_crop_box_at_any_size(self) -> None:
        for size in ((400, 200), (3000, 1500)):
            rendered = self.render(1, Box(0.25, 0, 0.75, 1), size)
            assert tuple(rendered[int(size[1] * 7 / 8), int(size[0] * (0.25 + 7 / 16))]) == (255, 213, 74)


def uniform_renderer(num_words: int) -> AttentionRenderer:
    return AttentionRenderer(np.ones((num_words, 2, 2), np.float32), FULL_IMAGE)
