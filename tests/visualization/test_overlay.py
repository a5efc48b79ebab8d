import numpy as np
import pytest
from PIL import Image

from captioning.preprocessing.image import Box
from captioning.utils.errors import CaptioningError
from captioning.visualization import overlay
from captioning.visualization.overlay import AttentionRenderer

FULL_IMAGE = Box(0, 0, 1, 1)


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
    assert np.abs(np.diff(rendered, axis=0)).max() < 8
    assert np.abs(np.diff(rendered, axis=1)).max() < 8
    assert rendered.max() - rendered.min() > 180


def test_map_of_a_center_crop() -> None:
    rendered = AttentionRenderer(one_cell(0, 0), Box(0.25, 0, 0.75, 1))(white(200, 100), 0)
    assert brightest(rendered) == pytest.approx((0.25 + 0.5 / 8, 0.5 / 4), abs=0.06)
    outside = np.asarray(rendered)[:, :40]
    assert outside.max() < 80, "outside the crop box the image is dark"


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


@pytest.mark.parametrize("colormap", overlay.COLORMAPS)
def test_colormap_and_opacity(colormap: str) -> None:
    image = Image.new("RGB", (80, 80), (90, 160, 90))
    original = np.asarray(image, dtype=int)

    def render(opacity: float) -> np.ndarray:
        renderer = AttentionRenderer(one_cell(1, 1), FULL_IMAGE, colormap=colormap, opacity=opacity)
        return np.asarray(renderer(image, 0), dtype=int)

    np.testing.assert_array_equal(render(0), original)
    low, high = (40 + 10, 40 + 10), (30, 30)
    stops = overlay.COLORMAPS[colormap]
    full = render(1)
    assert full[70, 70] == pytest.approx(stops[0][:3], abs=2), "opaque where attention is low"
    expected = original[high] if colormap == "spotlight" else stops[-1][:3]
    assert full[high] == pytest.approx(expected, abs=8)
    half = render(0.5)
    assert (np.abs(half - original) <= np.abs(full - original) + 1).all()
    assert (half[low] != full[low]).any()


def test_invalid_settings() -> None:
    with pytest.raises(CaptioningError, match="unknown colormap 'jet'; choose one of spotlight, hot, viridis"):
        AttentionRenderer(one_cell(0, 0), FULL_IMAGE, colormap="jet")
    for opacity in (-0.1, 1.1, float("nan")):
        with pytest.raises(CaptioningError, match="opacity must be in"):
            AttentionRenderer(one_cell(0, 0), FULL_IMAGE, opacity=opacity)
    with pytest.raises(CaptioningError, match=r"panel_width must be in \[16, 4000\] pixels, got 0"):
        overlay.render_panels(white(9, 9), ["a"], AttentionRenderer(one_cell(0, 0), FULL_IMAGE), panel_width=0)


class TestHardAttention:
    ATTENTION_MAPS = np.concatenate([one_cell(0, 0), one_cell(3, 3), one_cell(0, 3)])

    def render(self, word_index: int, crop_box: Box = FULL_IMAGE, size: tuple[int, int] = (400, 400)) -> np.ndarray:
        return np.asarray(
            AttentionRenderer(self.ATTENTION_MAPS, crop_box, (0.5, 0.5))(white(*size), word_index), dtype=int
        )

    def test_receptive_field_is_bright_and_the_rest_dark(self) -> None:
        first = self.render(0)
        assert first[130, 130].min() == 255, "inside the receptive field"
        assert first[170, 170].max() == 255 - round(0.75 * 255)
        assert first[130, 200].max() < 80

    def test_cell_has_an_outline_and_a_center_mark(self) -> None:
        first = self.render(0)
        yellow = (255, 213, 74)
        for pixel in ((50, 50), (50, 100), (100, 50)):
            assert first[pixel] == pytest.approx(yellow, abs=70)  # lines are antialiased
        assert first[70, 70].min() == 255

    def test_scanpath_connects_the_words(self) -> None:
        first, second, third = (self.render(word)[200, 200] for word in range(3))
        assert first.max() < 80
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
        assert rendered.max() < 80

    def test_location_respects_the_crop_box_at_any_size(self) -> None:
        for size in ((400, 200), (3000, 1500)):
            rendered = self.render(1, Box(0.25, 0, 0.75, 1), size)
            assert tuple(rendered[int(size[1] * 7 / 8), int(size[0] * (0.25 + 7 / 16))]) == (255, 213, 74)


def test_panels_show_the_image_and_each_word() -> None:
    words = ["a", "dog", "runs"]
    attention_maps = np.concatenate([one_cell(0, 0), one_cell(0, 3), one_cell(3, 0)])
    sheet = overlay.render_panels(
        white(300, 200), words, AttentionRenderer(attention_maps, FULL_IMAGE), panel_width=150, columns=2
    )
    assert sheet.width == 2 * 150 + 3 * 12
    panel_height = 100
    tops = [sheet.height - (2 - row) * (panel_height + 30 + 12) for row in (0, 1)]
    boxes = [(12 + column * 162, top, 12 + column * 162 + 150, top + panel_height) for top in tops for column in (0, 1)]
    first, *rest = (sheet.crop(box) for box in boxes)
    assert np.asarray(first).min() > 250, "the first panel is the unmodified image"
    for panel, (x, y) in zip(rest, [(0.125, 0.125), (0.875, 0.125), (0.125, 0.875)], strict=True):
        assert brightest(panel) == pytest.approx((x, y), abs=0.06)


def uniform_renderer(num_words: int) -> AttentionRenderer:
    return AttentionRenderer(np.ones((num_words, 2, 2), np.float32), FULL_IMAGE)


def test_panels_contain_the_words() -> None:
    sheets = [np.asarray(overlay.render_panels(white(50, 50), [word], uniform_renderer(1))) for word in ("dog", "cat")]
    assert (sheets[0] != sheets[1]).any()


def test_long_words_and_captions_stay_inside_the_margins() -> None:
    words = ["pneumonoultramicroscopicsilicovolcanoconiosis"] * 9
    sheet = overlay.render_panels(white(50, 400), words, uniform_renderer(9), 80, 4)
    pixels = np.asarray(sheet)
    assert pixels[:, -6:].min() == 255
    assert pixels[:, :6].min() == 255
    for frame in overlay.render_animation(white(100, 400), words, uniform_renderer(9)):
        assert np.asarray(frame)[400:, -6:].min() == 255


def test_right_to_left_text_is_right_aligned() -> None:
    frames = [
        next(overlay.render_animation(white(400, 20), words.split(), uniform_renderer(2)))
        for words in ("dog a", "כלב א")
    ]
    left, right = (np.nonzero(np.asarray(frame)[20:].min((0, 2)) < 128)[0] for frame in frames)
    assert left.max() < 200 < right.min()


@pytest.mark.parametrize("background", ["white", "black", "gray"])
@pytest.mark.parametrize("size", [(640, 480), (48, 64)])
def test_label_is_readable_on_any_image(background: str, size: tuple[int, int]) -> None:
    (frame,) = overlay.render_frames(Image.new("RGB", size, background), ["dog"], uniform_renderer(1))
    assert frame.size == size
    lower = np.asarray(frame.convert("L"))[size[1] // 2 :]
    assert lower.max() > 240, "the text is white"
    assert (lower < 70).mean() > 0.002, "on a dark background"


def test_label_does_not_cover_the_peak() -> None:
    high, low = (
        np.asarray(
            next(overlay.render_frames(white(400, 400), ["dog"], AttentionRenderer(one_cell(row, 0), FULL_IMAGE))),
            dtype=int,
        )
        for row in (0, 3)
    )
    assert high[340:, :30].max(axis=(1, 2)).min() < 80, "at the bottom by default"
    assert low[340:, :30].min() > 80, "at the top if the peak is at the bottom"


def test_animation_has_one_frame_per_word() -> None:
    attention_maps = np.concatenate([one_cell(0, 0), one_cell(3, 3)])
    frames = list(
        overlay.render_animation(white(900, 600), ["red", "dog"], AttentionRenderer(attention_maps, FULL_IMAGE))
    )
    assert [frame.size for frame in frames] == [(480, 320 + 30 + 12)] * 3
    assert np.asarray(frames[0])[:320].min() == 255
    for frame, position in zip(frames[1:], (0.125, 0.875), strict=True):
        assert brightest(frame.crop((0, 0, 480, 320))) == pytest.approx((position, position), abs=0.06)
    highlights = [np.nonzero((np.asarray(frame)[320:] == (255, 213, 74)).all(2))[1] for frame in frames]
    assert len(highlights[0]) == 0
    assert highlights[1].mean() < highlights[2].mean(), "the current word is highlighted"


def test_caption_without_words() -> None:
    renderer = AttentionRenderer(np.zeros((0, 4, 4), np.float32), FULL_IMAGE)
    assert overlay.render_panels(white(100, 50), [], renderer).width == 200 + 2 * 12
    assert len(list(overlay.render_animation(white(100, 50), [], renderer))) == 1
    assert list(overlay.render_frames(white(100, 50), [], renderer)) == []


def test_image_smaller_than_a_word() -> None:
    (frame,) = overlay.render_frames(white(20, 1), ["dog"], uniform_renderer(1))
    assert frame.size == (20, 1)
    assert overlay.render_panels(white(1, 3), ["dog"], uniform_renderer(1)).width > 400
