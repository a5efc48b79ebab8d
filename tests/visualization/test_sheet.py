"""Sheets, frames and animations of rendered attention maps."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from captioning.visualization import sheet
from captioning.visualization.overlay import AttentionRenderer
from tests.visualization.test_overlay import FULL_IMAGE, brightest, one_cell, uniform_renderer, white


def make_sheet(
    image: Image.Image, words: list[str], renderer: AttentionRenderer | None = None, **options: Any
) -> Image.Image:
    options = {"probs": [0.5] * len(words), **options}
    return sheet.render_panels(image, words, renderer or uniform_renderer(len(words)), **options)


def make_frame(image: Image.Image, word: str, renderer: AttentionRenderer) -> Image.Image:
    bands = [np.asarray(band) for band in sheet.render_frame_rows(image, word, 0.5, renderer, 0)]
    return Image.fromarray(np.concatenate(bands))


def find_panels(rendered: Image.Image) -> list[tuple[int, int, int, int]]:
    """Boxes inside the borders of the panels, from left to right and from top to bottom."""
    is_border = (np.asarray(rendered) == (205, 205, 210)).all(2)
    lines = [row for row in range(rendered.height) if is_border[row].sum() > 20]
    boxes = []
    for top, bottom in zip(lines[::2], lines[1::2], strict=True):
        columns = np.flatnonzero(is_border[(top + bottom) // 2])
        boxes += [(left + 1, top + 1, right, bottom) for left, right in zip(columns[::2], columns[1::2], strict=True)]
    return boxes


def test_panels_show_the_image_and_each_word() -> None:
    attention_maps = np.concatenate([one_cell(0, 0), one_cell(0, 3), one_cell(3, 0)])
    renderer = AttentionRenderer(attention_maps, FULL_IMAGE)
    rendered = make_sheet(white(300, 200), ["a", "dog", "runs"], renderer, panel_width=150, columns=2)
    panels = [rendered.crop(box) for box in find_panels(rendered)]
    assert [panel.size for panel in panels] == [(150, 100)] * 4
    assert np.asarray(panels[0]).min() > 250, "the first panel is the unmodified image"
    for panel, (x, y) in zip(panels[1:], [(0.125, 0.125), (0.875, 0.125), (0.125, 0.875)], strict=True):
        assert brightest(panel) == pytest.approx((x, y), abs=0.08)


def test_panels_contain_words_probabilities_and_gates() -> None:
    variants = [
        make_sheet(white(50, 50), ["dog"], **options)
        for options in ({}, {"probs": [0.25]}, {"gates": [0.5]}, {"gates": [0.75]})
    ]
    variants.append(make_sheet(white(50, 50), ["cat"]))
    assert len({image.tobytes() for image in variants}) == 5


def test_content_words_are_darker_than_function_words() -> None:
    def label(word: str) -> np.ndarray:
        rendered = make_sheet(white(50, 50), ["x", word])
        left, _, right, bottom = find_panels(rendered)[2]
        return np.asarray(rendered.crop((left, bottom + 5, right, bottom + 30)).convert("L"))

    assert label("dogs").min() < 40
    assert 90 < label("with").min() < 130


@pytest.mark.parametrize("size", [(4000, 200), (1600, 400), (300, 200), (200, 300), (200, 1600), (1, 100_000)])
def test_sheet_of_any_aspect_ratio(size: tuple[int, int]) -> None:
    words = "a brown dog is running through the snow".split()
    rendered = make_sheet(white(*size), words)
    assert rendered.width < 1400
    assert rendered.height < 2200
    panels = find_panels(rendered)
    assert len(panels) == 9
    left, top, right, bottom = panels[0]
    assert (right - left) * (bottom - top) > 5000
    if 0.1 < size[0] / size[1] < 10:
        assert (right - left) / (bottom - top) == pytest.approx(size[0] / size[1], rel=0.03), "not squeezed"


@pytest.mark.parametrize(("num_panels", "rows"), [(5, [5]), (7, [4, 3]), (12, [6, 6]), (14, [5, 5, 4])])
def test_rows_have_similar_numbers_of_panels(num_panels: int, rows: list[int]) -> None:
    panels = find_panels(make_sheet(white(300, 200), ["dog"] * (num_panels - 1)))
    tops = [top for _, top, _, _ in panels]
    assert [tops.count(top) for top in sorted(set(tops))] == rows


def test_long_words_and_captions_stay_inside_the_margins() -> None:
    words = ["pneumonoultramicroscopicsilicovolcanoconiosis"] * 9
    pixels = np.asarray(make_sheet(white(50, 400), words, panel_width=80, columns=4))
    assert pixels[:, -12:].min() == 255
    assert pixels[:, :12].min() == 255
    for frame in sheet.render_animation(white(100, 400), words, uniform_renderer(9)):
        assert np.asarray(frame)[400:, -6:].min() == 255


def test_right_to_left_text_is_right_aligned() -> None:
    frames = [
        next(sheet.render_animation(white(400, 20), words.split(), uniform_renderer(2))) for words in ("dog a", "כלב א")
    ]
    left, right = (np.nonzero(np.asarray(frame)[30:].min((0, 2)) < 128)[0] for frame in frames)
    assert left.max() < 200 < right.min()


@pytest.mark.parametrize("background", ["white", "black", "gray"])
@pytest.mark.parametrize("size", [(640, 480), (96, 64)])
def test_label_is_readable_on_any_image(background: str, size: tuple[int, int]) -> None:
    frame = make_frame(Image.new("RGB", size, background), "dog", uniform_renderer(1))
    assert frame.size == size
    lower = np.asarray(frame.convert("L"))[size[1] // 2 :]
    assert lower.max() > 220, "the text is white"
    assert (lower < 110).mean() > 0.002, "on a dark background"


def test_label_does_not_cover_the_peak() -> None:
    for row, is_at_bottom in ((0, True), (3, False)):
        renderer = AttentionRenderer(one_cell(row, 0), FULL_IMAGE)
        frame = np.asarray(make_frame(white(400, 400), "dog", renderer), int)
        rows, _, _ = np.nonzero(np.abs(frame - np.asarray(renderer(white(400, 400), 0), int)) > 30)
        assert len(rows) > 0
        assert (np.median(rows) > 200) == is_at_bottom


def test_animation_has_one_frame_per_word() -> None:
    attention_maps = np.concatenate([one_cell(0, 0), one_cell(3, 3)])
    frames = list(
        sheet.render_animation(white(900, 600), ["red", "dog"], AttentionRenderer(attention_maps, FULL_IMAGE))
    )
    assert [frame.size for frame in frames] == [(480, 320 + 29 + 24)] * 3
    assert np.asarray(frames[0])[:320].min() == 255
    for frame, position in zip(frames[1:], (0.125, 0.875), strict=True):
        assert brightest(frame.crop((0, 0, 480, 320))) == pytest.approx((position, position), abs=0.06)
    highlights = [np.nonzero((np.asarray(frame)[320:] == (255, 213, 74)).all(2))[1] for frame in frames]
    assert len(highlights[0]) == 0
    assert highlights[1].mean() < highlights[2].mean(), "the current word is highlighted"


def test_caption_without_words() -> None:
    renderer = AttentionRenderer(np.zeros((0, 4, 4), np.float32), FULL_IMAGE)
    assert len(find_panels(make_sheet(white(100, 50), [], renderer))) == 1
    assert len(list(sheet.render_animation(white(100, 50), [], renderer))) == 1


def test_image_smaller_than_a_word() -> None:
    assert make_frame(white(20, 1), "dog", uniform_renderer(1)).size == (20, 1)
    assert make_sheet(white(1, 3), ["dog"]).width > 100
