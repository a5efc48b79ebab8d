"""viewer.js in Chromium, inlined into a page that is opened from disk without a network."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from captioning.visualization import html
from captioning.visualization.colormaps import DEFAULT_OPACITY
from captioning.visualization.concentration import half_attention_area
from captioning.visualization.legend import percent
from captioning.visualization.smoothing import smooth_maps

SOFT = [[0.7, 0.1], [0.1, 0.1]], [[0.1, 0.1], [0.1, 0.7]], [[0.25, 0.25], [0.25, 0.25]]
CANVAS = "document.querySelector('canvas').toDataURL()"
HARD = [[1, 0], [0, 0]], [[0, 0], [0, 1]], [[0, 1], [0, 0]]


def make_caption(words: str, attention_maps: Any = SOFT, **changes: Any) -> dict[str, Any]:
    """A caption in the format of Caption.to_dict()."""
    word_fields = [
        {"word": word, "probability": round(0.9 - 0.3 * index, 4), "attention_map": attention_map}
        for index, (word, attention_map) in enumerate(zip(words.split(), attention_maps, strict=True))
    ]
    caption = {"caption": words, "score": 0.5, "crop_box": [0, 0, 1, 1], "receptive_field": None, "words": word_fields}
    return {**caption, **changes}


def open_viewer(page: Any, directory: Path, *captions: dict[str, Any], width: int = 1000, **options: Any) -> None:
    """Open a page from disk that contains only the viewer."""
    buffer = io.BytesIO()
    Image.new("RGB", (400, 200), "white").save(buffer, "PNG")
    image = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    content = json.dumps({"image": image, "captions": captions, **options}).replace("<", "\\u003c")
    (directory / "page.html").write_text(
        f"<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<style>{html.read_asset('viewer.css')}</style><main></main>"
        f"<script type=module>{html.bundle(html.VIEWER_MODULES)}"
        f"const viewer = new Viewer(document.querySelector('main')); viewer.show({content});"
        "document.viewer = viewer;</script>"
    )
    page.context.set_offline(True)
    page.emulate_media(reduced_motion="reduce")  # no transitions
    page.set_viewport_size({"width": width, "height": 800})
    page.goto((directory / "page.html").as_uri())
    page.wait_for_function("document.querySelector('canvas').width > 0 && document.querySelector('img').complete")


def opacity(page: Any) -> np.ndarray:
    """Alpha channel of the canvas (height, width), 0 to 1."""
    encoded = page.eval_on_selector("canvas", "canvas => canvas.toDataURL()").partition(",")[2]
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
        return np.asarray(image.convert("RGBA"))[..., 3] / 255


def current_words(page: Any) -> list[str]:
    return page.locator(".viewer-current").all_inner_texts()


def brightest(page: Any) -> tuple[float, float]:
    """Center of the least covered pixels, in fractions of the image."""
    alpha = opacity(page)
    rows, columns = np.nonzero(alpha < alpha.min() + 0.02)
    return columns.mean() / alpha.shape[1], rows.mean() / alpha.shape[0]


def test_hovering_a_word_shows_its_attention_map(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, make_caption("a red dog"))
    assert opacity(browser_page).max() == 0, "no map before a word is selected"
    browser_page.hover("text=a >> nth=0")
    x, y = brightest(browser_page)
    assert max(x, y) < 0.35
    assert opacity(browser_page).max() > 0.5
    browser_page.hover("text=red")
    x, y = brightest(browser_page)
    assert min(x, y) > 0.65
    browser_page.hover("text=dog")
    assert opacity(browser_page).max() < 0.02, "a uniform map covers nothing"
    browser_page.mouse.move(5, 795)
    assert opacity(browser_page).max() == 0
    assert current_words(browser_page) == []


def test_maps_are_smoothed_like_those_of_png_overlays(browser_page: Any, tmp_path: Path) -> None:
    maps = np.random.default_rng(0).dirichlet(np.full(144, 0.1), 2).reshape(2, 9, 16)
    open_viewer(browser_page, tmp_path, make_caption("red dog", maps.tolist()))
    for word, area in enumerate(map(half_attention_area, smooth_maps(maps))):
        browser_page.evaluate(f"document.viewer.focus({word})")
        assert f"half of the attention in {percent(area)} of" in browser_page.inner_text("[role=status]")
        assert percent(area) != percent(half_attention_area(maps[word]))


def test_keyboard_navigation(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, make_caption("a red dog"))
    browser_page.keyboard.press("Tab")
    assert current_words(browser_page) == ["A"]
    visited = []
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "Home", "End"):
        browser_page.keyboard.press(key)
        visited += current_words(browser_page)
    assert visited == ["red", "dog", "dog", "red", "A", "dog"]
    area = percent(half_attention_area(np.array(SOFT[2])))
    assert browser_page.inner_text("[role=status]") == (
        f"\u2068dog\u2069: probability 30 %, half of the attention in {area} of the image; word 3 of 3"
    )
    browser_page.keyboard.press("Escape")
    assert current_words(browser_page) == []
    assert opacity(browser_page).max() == 0


def test_alternatives_can_be_selected(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(
        browser_page, tmp_path, make_caption("a red dog"), make_caption("one big cat"), make_caption("some more words")
    )
    tabs = browser_page.get_by_role("tab")
    assert tabs.count() == 3
    tabs.nth(1).click()
    assert browser_page.locator(".viewer-word").all_inner_texts() == ["One", "big", "cat"]
    assert tabs.nth(1).get_attribute("aria-selected") == "true"
    browser_page.keyboard.press("ArrowDown")
    assert browser_page.locator(".viewer-word").all_inner_texts() == ["Some", "more", "words"]
    open_viewer(browser_page, tmp_path, make_caption("a red dog"))
    assert browser_page.get_by_role("tab").count() == 0


def test_playback_shows_every_word_once(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, make_caption("a red dog"))
    browser_page.clock.install(time=0)
    browser_page.clock.pause_at(1000)  # time advances only by run_for
    browser_page.get_by_role("button", name="Play").click()
    visited = []
    for _ in range(3):
        visited += current_words(browser_page)
        browser_page.clock.run_for(900)
    assert visited == ["A", "red", "dog"]
    assert browser_page.get_by_role("button", name="Play").count() == 1, "playback stops at the last word"
    browser_page.get_by_role("button", name="Play").click()
    browser_page.get_by_role("button", name="Pause").click()
    browser_page.clock.run_for(5000)
    assert current_words(browser_page) == ["A"]


def test_probability_is_not_encoded_by_color_alone(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, make_caption("a red dog"))
    words = browser_page.locator(".viewer-word")
    assert words.nth(1).get_attribute("aria-label") == "red, probability 60 %"
    bars = {words.nth(index).evaluate("word => getComputedStyle(word).backgroundSize") for index in range(3)}
    assert len(bars) == 3
    for theme in ("light", "dark"):
        browser_page.emulate_media(color_scheme=theme)
        assert browser_page.evaluate("getComputedStyle(document.querySelector('.viewer')).color") != ""
        assert min(contrast(words.nth(index)) for index in range(3)) > 4.5
        words.nth(0).hover()
        assert contrast(words.nth(0)) > 4.5, "highlighted"


def contrast(element: Any) -> float:
    """Contrast ratio of text and background as defined by WCAG."""
    script = """element => [getComputedStyle(element).color, getComputedStyle(element).backgroundColor].map(color => {
        const context = document.createElement('canvas').getContext('2d');
        const isDark = matchMedia('(prefers-color-scheme: dark)').matches;
        for (context.fillStyle of [isDark ? '#141417' : '#f7f7f9', color]) context.fillRect(0, 0, 1, 1);
        return [...context.getImageData(0, 0, 1, 1).data];
    })"""
    luminances = []
    for channels in element.evaluate(script):
        linear = [
            v / 12.92 if (v := channel / 255) <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for channel in channels
        ]
        luminances.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


def test_hard_attention_shows_location_and_scanpath(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, make_caption("a red dog", HARD, receptive_field=[0.4, 0.4]))
    browser_page.hover("text=a >> nth=0")
    first = opacity(browser_page)
    height, width = first.shape
    assert first[int(0.4 * height), int(0.4 * width)] == 0, "the receptive field is not covered"
    assert first[int(0.6 * height), int(0.6 * width)] == pytest.approx(DEFAULT_OPACITY, abs=0.02), "the rest is dark"
    assert first[height // 4, width // 4] == 1, "the location is marked"
    assert first[height // 2, int(0.62 * width)] == pytest.approx(DEFAULT_OPACITY, abs=0.02)
    browser_page.hover("text=red")
    second = opacity(browser_page)
    assert second[height // 4, width // 4] == 1, "the previous location stays marked"
    assert second[height // 2, width // 2] == 1, "a line connects both"


@pytest.mark.parametrize("size", [320, 1200])
def test_map_covers_the_crop_box(browser_page: Any, tmp_path: Path, size: int) -> None:
    open_viewer(browser_page, tmp_path, make_caption("a red dog", crop_box=[0.25, 0, 0.75, 1]), width=size)
    browser_page.hover("text=a >> nth=0")
    x, y = brightest(browser_page)
    assert 0.25 < x < 0.45
    assert y < 0.35
    alpha = opacity(browser_page)
    assert alpha[:, : alpha.shape[1] // 5].min() == pytest.approx(DEFAULT_OPACITY, abs=0.02), (
        "dark outside the crop box"
    )


def test_words_are_inserted_as_text(browser_page: Any, tmp_path: Path) -> None:
    """Markup in a caption is not interpreted, and the script adds no global object."""
    globals_of_page = "Object.getOwnPropertyNames(window).sort()"
    markup = make_caption("</script><script>window.broken=1</script> \"'&<b>x</b> <img/src=x/onerror=window.broken=2>")
    (tmp_path / "empty.html").write_text("<!doctype html>")
    browser_page.goto((tmp_path / "empty.html").as_uri())
    names_before = browser_page.evaluate(globals_of_page)
    open_viewer(browser_page, tmp_path, markup, markup)
    assert browser_page.locator(".viewer-word").all_inner_texts() == markup["caption"].split()
    assert browser_page.evaluate("window.broken") is None
    assert browser_page.evaluate(globals_of_page) == names_before


def test_narrow_page_does_not_overflow(browser_page: Any, tmp_path: Path) -> None:
    long_caption = make_caption("a pneumonoultramicroscopicsilicovolcanoconiosis dog")
    open_viewer(browser_page, tmp_path, long_caption, long_caption, width=320)
    assert browser_page.evaluate("document.documentElement.scrollWidth") <= 320


def test_transition_unless_reduced_motion(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, make_caption("a red dog"))
    final = [browser_page.evaluate(f"document.viewer.focus({word}); {CANVAS}") for word in (0, 1)]
    assert final[0] != final[1]
    browser_page.emulate_media(reduced_motion="no-preference")
    browser_page.clock.install(time=0)
    browser_page.clock.pause_at(1000)
    browser_page.evaluate("document.viewer.focus(null); document.viewer.focus(0)")
    frames = [browser_page.evaluate(f"document.viewer.focus(1); {CANVAS}")]
    for milliseconds in (90, 200):
        browser_page.clock.run_for(milliseconds)
        frames.append(browser_page.evaluate(CANVAS))
    assert [frames[0], frames[2]] == final, "from one map to the other"
    assert frames[1] not in final


def test_colors_can_be_chosen(browser_page: Any, tmp_path: Path) -> None:
    """With hot and viridis, regions of low attention keep the colors of the image."""
    open_viewer(browser_page, tmp_path, make_caption("a red dog"), colormap="viridis", opacity=0.5)
    browser_page.evaluate("document.viewer.focus(0)")
    read_pixels = """c => [[0.28, 0.2], [0.9, 0.9]].map(([x, y]) =>
        [...c.getContext('2d').getImageData(x * c.width, y * c.height, 1, 1).data])"""

    def pixels() -> list[list[int]]:
        return browser_page.eval_on_selector("canvas", read_pixels)

    (red, green, blue, alpha), low = pixels()
    assert min(red, green) > 180
    assert blue < 60
    assert alpha == pytest.approx(128, abs=20)
    assert low[3] < 25
    assert "Yellow: high attention" in browser_page.inner_text(".viewer-legend")
    browser_page.get_by_label("Colors").select_option("spotlight")
    browser_page.get_by_label("Opacity").fill("1")
    high, low = pixels()
    assert high[3] < 40
    assert low[3] > 160


def test_confidence_gate_and_copy(browser_page: Any, tmp_path: Path) -> None:
    caption = make_caption("a red dog", confidence=0.31, is_uncertain=True)
    caption["words"][1]["context_gate"] = 0.714
    open_viewer(browser_page, tmp_path, caption)
    assert browser_page.inner_text(".viewer-confidence") == "Not sure \u00b7 Confidence 31 %"
    assert browser_page.get_by_role("heading").inner_text().split() == ["A", "red", "dog"]
    browser_page.get_by_text("red").hover()
    assert "gate 0.71" in browser_page.inner_text("[role=status]")
    browser_page.evaluate("document.execCommand = () => (document.copied = document.activeElement.value)")
    browser_page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    browser_page.get_by_role("button", name="Copy").click()
    browser_page.get_by_role("button", name="Copied").wait_for()
    assert browser_page.evaluate("document.copied") == "A red dog."


def test_selected_word_can_be_pinned(browser_page: Any, tmp_path: Path) -> None:
    """A click keeps the map after the pointer has left; a second click removes it."""
    open_viewer(browser_page, tmp_path, make_caption("a red dog"))
    word = browser_page.get_by_role("button", name="red, probability")
    for expected in (["red"], []):
        word.click()
        browser_page.mouse.move(5, 795)
        browser_page.evaluate("document.activeElement.blur()")
        assert current_words(browser_page) == expected
