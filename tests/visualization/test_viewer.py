"""viewer.js in Chromium, inlined into a page that is opened from disk without a network."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import captioning.visualization

ASSETS_DIR = Path(captioning.visualization.__file__).parent / "assets"
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
        f"<style>{(ASSETS_DIR / 'viewer.css').read_text()}</style><main></main>"
        f"<script>{(ASSETS_DIR / 'viewer.js').read_text()}</script>"
        f"<script>const viewer = new Viewer(document.querySelector('main')); viewer.show({content});</script>"
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


def test_keyboard_navigation(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, make_caption("a red dog"))
    browser_page.keyboard.press("Tab")
    assert current_words(browser_page) == ["a"]
    visited = []
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "Home", "End"):
        browser_page.keyboard.press(key)
        visited += current_words(browser_page)
    assert visited == ["red", "dog", "dog", "red", "a", "dog"]
    assert browser_page.inner_text("[role=status]") == "\u2068dog\u2069: probability 30 %, word 3 of 3"
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
    assert browser_page.locator(".viewer-word").all_inner_texts() == ["one", "big", "cat"]
    assert tabs.nth(1).get_attribute("aria-selected") == "true"
    browser_page.keyboard.press("ArrowDown")
    assert browser_page.locator(".viewer-word").all_inner_texts() == ["some", "more", "words"]
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
    assert visited == ["a", "red", "dog"]
    assert browser_page.get_by_role("button", name="Play").count() == 1, "playback stops at the last word"
    browser_page.get_by_role("button", name="Play").click()
    browser_page.get_by_role("button", name="Pause").click()
    browser_page.clock.run_for(5000)
    assert current_words(browser_page) == ["a"]


def test_probability_is_not_encoded_by_color_alone(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, make_caption("a red dog"))
    words = browser_page.locator(".viewer-word")
    assert words.nth(1).get_attribute("aria-label") == "red, probability 60 %"
    colors = {words.nth(index).evaluate("word => getComputedStyle(word).backgroundColor") for index in range(3)}
    assert len(colors) == 3
    for theme in ("light", "dark"):
        browser_page.emulate_media(color_scheme=theme)
        assert browser_page.evaluate("getComputedStyle(document.querySelector('.viewer')).color") != ""
        assert min(contrast(words.nth(index)) for index in range(3)) > 4.5


def contrast(element: Any) -> float:
    """Contrast ratio of text and background as defined by WCAG."""
    script = """element => [getComputedStyle(element).color, getComputedStyle(element).backgroundColor].map(color => {
        const context = document.createElement('canvas').getContext('2d');
        context.fillStyle = color; context.fillRect(0, 0, 1, 1);
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
    assert first[int(0.6 * height), int(0.6 * width)] == pytest.approx(0.75, abs=0.02), "the rest is dark"
    assert first[height // 4, width // 4] == 1, "the location is marked"
    assert first[height // 2, int(0.62 * width)] == pytest.approx(0.75, abs=0.02)
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
    assert alpha[:, : alpha.shape[1] // 5].min() == pytest.approx(0.75, abs=0.02), "dark outside the crop box"


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
    final = [browser_page.evaluate(f"viewer.focus({word}); {CANVAS}") for word in (0, 1)]
    assert final[0] != final[1]
    browser_page.emulate_media(reduced_motion="no-preference")
    browser_page.clock.install(time=0)
    browser_page.clock.pause_at(1000)
    browser_page.evaluate("viewer.focus(null); viewer.focus(0)")
    frames = [browser_page.evaluate(f"viewer.focus(1); {CANVAS}")]
    for milliseconds in (90, 200):
        browser_page.clock.run_for(milliseconds)
        frames.append(browser_page.evaluate(CANVAS))
    assert [frames[0], frames[2]] == final, "from one map to the other"
    assert frames[1] not in final


def test_custom_colormap(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, make_caption("a red dog"), colormapStops=[[0, 0, 255, 1], [255, 0, 0, 0.5]])
    browser_page.evaluate("viewer.focus(0)")
    read_pixel = "c => [...c.getContext('2d').getImageData(c.width / 4, c.height / 4, 1, 1).data]"
    red, _, blue, alpha = browser_page.eval_on_selector("canvas", read_pixel)
    assert red > 230
    assert blue < 30
    assert alpha == pytest.approx(128, abs=6)
