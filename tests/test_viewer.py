"""viewer.js in a real browser, inlined into a page that is opened from disk with the network off."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import captioning.web

FILES = Path(captioning.web.__file__).parent
SOFT = [[0.7, 0.1], [0.1, 0.1]], [[0.1, 0.1], [0.1, 0.7]], [[0.25, 0.25], [0.25, 0.25]]
IMAGE = "document.querySelector('canvas').toDataURL()"
HARD = [[1, 0], [0, 0]], [[0, 0], [0, 1]], [[0, 1], [0, 0]]


def described(words: str, maps: Any = SOFT, **changes: Any) -> dict[str, Any]:
    """A caption as Caption.describe() tells it."""
    parts = [
        {"word": word, "probability": round(0.9 - 0.3 * number, 4), "map": weights}
        for number, (word, weights) in enumerate(zip(words.split(), maps, strict=True))
    ]
    return {"caption": words, "score": 0.5, "window": [0, 0, 1, 1], "field": None, "words": parts, **changes}


def open_viewer(page: Any, folder: Path, *captions: dict[str, Any], width: int = 1000, **more: Any) -> None:
    """A page with nothing but the viewer, from disk."""
    buffer = io.BytesIO()
    Image.new("RGB", (400, 200), "white").save(buffer, "PNG")
    photo = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    content = json.dumps({"photo": photo, "captions": captions, **more}).replace("<", "\\u003c")
    (folder / "page.html").write_text(
        f"<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<style>{(FILES / 'viewer.css').read_text()}</style><main></main>"
        f"<script>{(FILES / 'viewer.js').read_text()}</script>"
        f"<script>const viewer = new Viewer(document.querySelector('main')); viewer.show({content});</script>"
    )
    page.context.set_offline(True)
    page.emulate_media(reduced_motion="reduce")  # what is drawn is there at once
    page.set_viewport_size({"width": width, "height": 800})
    page.goto((folder / "page.html").as_uri())
    page.wait_for_function("document.querySelector('canvas').width > 0 && document.querySelector('img').complete")


def opacity(page: Any) -> np.ndarray:
    """(height, width) of what the canvas holds, from 0 for nothing to 1."""
    encoded = page.eval_on_selector("canvas", "canvas => canvas.toDataURL()").partition(",")[2]
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
        return np.asarray(image.convert("RGBA"))[..., 3] / 255


def shown(page: Any) -> list[str]:
    return page.locator(".viewer-shown").all_inner_texts()


def brightest(page: Any) -> tuple[float, float]:
    """Where the photo is least covered, in shares of it."""
    cover = opacity(page)
    rows, columns = np.nonzero(cover < cover.min() + 0.02)
    return columns.mean() / cover.shape[1], rows.mean() / cover.shape[0]


def test_pointing_at_a_word_lights_what_it_looked_at(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, described("a red dog"))
    assert opacity(browser_page).max() == 0, "the photo as it is, until a word is chosen"
    browser_page.hover("text=a >> nth=0")
    x, y = brightest(browser_page)
    assert max(x, y) < 0.35
    assert opacity(browser_page).max() > 0.5
    browser_page.hover("text=red")
    x, y = brightest(browser_page)
    assert min(x, y) > 0.65
    browser_page.hover("text=dog")
    assert opacity(browser_page).max() < 0.02, "a flat map lights everything"
    browser_page.mouse.move(5, 795)
    assert opacity(browser_page).max() == 0
    assert shown(browser_page) == []


def test_the_keyboard_walks_through_the_words(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, described("a red dog"))
    browser_page.keyboard.press("Tab")
    assert shown(browser_page) == ["a"]
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "Home", "End"):
        browser_page.keyboard.press(key)
        seen += shown(browser_page)
    assert seen == ["red", "dog", "dog", "red", "a", "dog"]
    assert browser_page.inner_text("[role=status]") == "\u2068dog\u2069: 30 % sure, word 3 of 3"
    browser_page.keyboard.press("Escape")
    assert shown(browser_page) == []
    assert opacity(browser_page).max() == 0


def test_other_captions_can_be_chosen(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, described("a red dog"), described("one big cat"), described("some more words"))
    tabs = browser_page.get_by_role("tab")
    assert tabs.count() == 3
    tabs.nth(1).click()
    assert browser_page.locator(".viewer-word").all_inner_texts() == ["one", "big", "cat"]
    assert tabs.nth(1).get_attribute("aria-selected") == "true"
    browser_page.keyboard.press("ArrowDown")
    assert browser_page.locator(".viewer-word").all_inner_texts() == ["some", "more", "words"]
    open_viewer(browser_page, tmp_path, described("a red dog"))
    assert browser_page.get_by_role("tab").count() == 0


def test_playing_shows_every_word_once(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, described("a red dog"))
    browser_page.clock.install(time=0)
    browser_page.clock.pause_at(1000)  # from here on time goes by only as told
    browser_page.get_by_role("button", name="Play").click()
    seen = []
    for _ in range(3):
        seen += shown(browser_page)
        browser_page.clock.run_for(900)
    assert seen == ["a", "red", "dog"]
    assert browser_page.get_by_role("button", name="Play").count() == 1, "it stops at the end"
    browser_page.get_by_role("button", name="Play").click()
    browser_page.get_by_role("button", name="Pause").click()
    browser_page.clock.run_for(5000)
    assert shown(browser_page) == ["a"]


def test_how_sure_it_was_is_never_told_by_colour_alone(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, described("a red dog"))
    words = browser_page.locator(".viewer-word")
    assert words.nth(1).get_attribute("aria-label") == "red, 60 % sure"
    colours = {words.nth(number).evaluate("word => getComputedStyle(word).backgroundColor") for number in range(3)}
    assert len(colours) == 3
    for theme in ("light", "dark"):
        browser_page.emulate_media(color_scheme=theme)
        assert browser_page.evaluate("getComputedStyle(document.querySelector('.viewer')).color") != ""
        assert min(contrast(words.nth(number)) for number in range(3)) > 4.5


def contrast(element: Any) -> float:
    """Of text and ground, by the formula of WCAG."""
    script = """element => [getComputedStyle(element).color, getComputedStyle(element).backgroundColor].map(colour => {
        const pen = document.createElement('canvas').getContext('2d');
        pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
        return [...pen.getImageData(0, 0, 1, 1).data];
    })"""
    lights = []
    for channels in element.evaluate(script):
        linear = [
            v / 12.92 if (v := channel / 255) <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for channel in channels
        ]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_a_hard_look_is_one_place_and_a_path(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, described("a red dog", HARD, field=[0.4, 0.4]))
    browser_page.hover("text=a >> nth=0")
    first = opacity(browser_page)
    height, width = first.shape
    assert first[int(0.4 * height), int(0.4 * width)] == 0, "within the field the photo is bare"
    assert first[int(0.6 * height), int(0.6 * width)] == pytest.approx(0.75, abs=0.02), "beyond it, dim"
    assert first[height // 4, width // 4] == 1, "the place itself is marked"
    assert first[height // 2, int(0.62 * width)] == pytest.approx(0.75, abs=0.02)
    browser_page.hover("text=red")
    second = opacity(browser_page)
    assert second[height // 4, width // 4] == 1, "where it came from stays marked"
    assert second[height // 2, width // 2] == 1, "and a line leads from there"


@pytest.mark.parametrize("size", [320, 1200])
def test_a_map_lies_on_its_window(browser_page: Any, tmp_path: Path, size: int) -> None:
    open_viewer(browser_page, tmp_path, described("a red dog", window=[0.25, 0, 0.75, 1]), width=size)
    browser_page.hover("text=a >> nth=0")
    x, y = brightest(browser_page)
    assert 0.25 < x < 0.45
    assert y < 0.35
    cover = opacity(browser_page)
    assert cover[:, : cover.shape[1] // 5].min() == pytest.approx(0.75, abs=0.02), (
        "what the model did not see stays dim"
    )


def test_words_stay_words(browser_page: Any, tmp_path: Path) -> None:
    """Whatever is in a caption is text, and no global but the class is left behind."""
    globals_of_page = "Object.getOwnPropertyNames(window).sort()"
    nasty = described("</script><script>window.broken=1</script> \"'&<b>x</b> <img/src=x/onerror=window.broken=2>")
    (tmp_path / "empty.html").write_text("<!doctype html>")
    browser_page.goto((tmp_path / "empty.html").as_uri())
    names = browser_page.evaluate(globals_of_page)
    open_viewer(browser_page, tmp_path, nasty, nasty)
    assert browser_page.locator(".viewer-word").all_inner_texts() == nasty["caption"].split()
    assert browser_page.evaluate("window.broken") is None
    assert browser_page.evaluate(globals_of_page) == names


def test_a_narrow_page_cuts_nothing(browser_page: Any, tmp_path: Path) -> None:
    long = described("a pneumonoultramicroscopicsilicovolcanoconiosis dog")
    open_viewer(browser_page, tmp_path, long, long, width=320)
    assert browser_page.evaluate("document.documentElement.scrollWidth") <= 320


def test_maps_glide_unless_stillness_is_wanted(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, described("a red dog"))
    at_once = [browser_page.evaluate(f"viewer.focus({word}); {IMAGE}") for word in (0, 1)]
    assert at_once[0] != at_once[1]
    browser_page.emulate_media(reduced_motion="no-preference")
    browser_page.clock.install(time=0)
    browser_page.clock.pause_at(1000)
    browser_page.evaluate("viewer.focus(null); viewer.focus(0)")
    glide = [browser_page.evaluate(f"viewer.focus(1); {IMAGE}")]
    for milliseconds in (90, 200):
        browser_page.clock.run_for(milliseconds)
        glide.append(browser_page.evaluate(IMAGE))
    assert [glide[0], glide[2]] == at_once, "from the one map to the other"
    assert glide[1] not in at_once


def test_colours_can_be_given(browser_page: Any, tmp_path: Path) -> None:
    open_viewer(browser_page, tmp_path, described("a red dog"), colours=[[0, 0, 255, 1], [255, 0, 0, 0.5]])
    browser_page.evaluate("viewer.focus(0)")
    read = "c => [...c.getContext('2d').getImageData(c.width / 4, c.height / 4, 1, 1).data]"
    red, _, blue, strength = browser_page.eval_on_selector("canvas", read)
    assert red > 230
    assert blue < 30
    assert strength == pytest.approx(128, abs=6)
