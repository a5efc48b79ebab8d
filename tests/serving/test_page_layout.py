"""Layout, phone and keyboard use of the page, and the documentation of the API, in Chromium with a running server."""

from typing import Any

import pytest

from tests.serving.browser import CANVAS, send_files, set_range, wait_for_captions
from tests.serving.conftest import LiveServer

api = pytest.importorskip("playwright.sync_api", reason="requires playwright: pip install playwright")
api.expect.set_options(timeout=60_000)


@pytest.mark.parametrize(("width", "scheme"), [(320, "dark"), (1280, "light")])
def test_nothing_overlaps_or_overflows(captioned: Any, width: int, scheme: str) -> None:
    page = captioned
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 700})
    page.locator("#settings").evaluate("details => (details.open = true)")
    page.check("[name=do_sample][value=true]")
    set_range(page, "num_return_sequences", 3)
    api.expect(page.locator(".viewer-tab")).to_have_count(3)
    send_files(page, (f"{'long-' * 15}name.jpg", b"text"), ("scene.jpg", b"text"))
    page.wait_for_selector("#error:not(:empty)")
    page.locator("#result").evaluate("result => (result.hidden = false)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    selectors = (
        "#drop, .thumbnails button, summary, #form > label, fieldset, #error, .viewer-image, .viewer-word, "
        ".viewer-play, .viewer-tab, #actions button, .viewer-tools label, nav > *"
    )
    boxes = [box for element in page.locator(selectors).all() if (box := element.bounding_box())]
    assert len(boxes) > 20
    for index, box in enumerate(boxes):
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        for other in boxes[:index]:
            separate_x = other["x"] + other["width"] <= box["x"] + 1 or box["x"] + box["width"] <= other["x"] + 1
            separate_y = other["y"] + other["height"] <= box["y"] + 1 or box["y"] + box["height"] <= other["y"] + 1
            assert separate_x or separate_y, (box, other)
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(color.removeprefix("rgb(").split(",")[0]) < 128) == (scheme == "dark")


def test_columns_are_aligned(captioned: Any) -> None:
    """The photo starts with the first card, the sentence with the options, and the cards end at the same height."""
    page = captioned
    page.set_viewport_size({"width": 1280, "height": 800})
    page.locator("#settings").evaluate("details => (details.open = true)")
    cards = [card.bounding_box() for card in page.locator(".card").all()]
    figure, sentence = (page.locator(f".viewer-{name}").bounding_box() for name in ("figure", "head"))
    assert figure["x"] == pytest.approx(cards[0]["x"], abs=1)
    assert figure["x"] + figure["width"] == pytest.approx(cards[1]["x"] + cards[1]["width"], abs=1)
    assert sentence["x"] == pytest.approx(cards[2]["x"], abs=1)
    assert len({round(card["y"] + card["height"]) for card in cards}) == 1


def test_photos_side_by_side_are_at_the_same_height(captioned: Any) -> None:
    page = captioned
    page.set_viewport_size({"width": 1280, "height": 800})
    wait_for_captions(page, lambda: page.check("#compare"))
    api.expect(page.locator(".viewer-figure")).to_have_count(2)
    page.locator(".viewer-words").first.evaluate("words => words.append(' word'.repeat(40))")  # more lines in one pane
    tops = [
        page.locator(selector).nth(pane).bounding_box()["y"]
        for selector in (".viewer-figure", ".viewer-play")
        for pane in (0, 1)
    ]
    assert tops[0] == tops[1]
    assert tops[2] == tops[3]


def test_an_empty_page_fills_the_window(page: Any) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    box = page.locator("#settings").bounding_box()
    assert 800 < box["y"] + box["height"] <= 900


def test_phone(live_server: LiveServer, browser: Any, images: list[bytes]) -> None:
    """Options stay collapsed, the result scrolls into view, and the text mentions neither dropping nor arrow keys."""
    context = browser.new_context(viewport={"width": 390, "height": 700}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(live_server.url)
    page.wait_for_selector("html[data-ready]")
    assert page.get_by_text("Take a photo").is_visible()
    page.evaluate("scrollTo(0, 300)")
    wait_for_captions(page, lambda: send_files(page, ("scene.jpg", images[0])))
    assert not page.locator("#settings").evaluate("details => details.open")
    assert page.evaluate("Math.abs(document.querySelector('#result').getBoundingClientRect().top) < 60")
    text = page.locator("body").inner_text().lower()
    assert "tap a word" in text
    assert "drop" not in text
    assert "arrow" not in text
    page.locator(".viewer-word >> nth=1").tap()
    assert page.locator(".viewer-current").count() == 1
    context.close()


def test_all_controls_are_reachable_by_keyboard(captioned: Any) -> None:
    page, reached = captioned, set()
    page.evaluate("document.activeElement.blur()")
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"file", "occlude", "compare", "viewer-play", "limits-button", "live"} <= reached
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, input, select")].filter((element) => !(element.labels?.length
            || element.innerText.trim() || element.ariaLabel || element.querySelector("img[alt]"))).length"""
    )
    assert unnamed == 0
    page.locator(".viewer-word >> nth=0").focus()
    before = page.evaluate(CANVAS)
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.className").startswith("viewer-word")
    assert page.evaluate(CANVAS) != before


def test_documentation_of_the_api(browser_page: Any, live_server: LiveServer) -> None:
    browser_page.goto(f"{live_server.url}/docs")
    browser_page.get_by_role("heading", name="POST /v1/captions").wait_for()
    text = browser_page.locator("main").inner_text()
    assert f"curl --form images=@photo.jpg '{live_server.url}/v1/captions'" in text
    assert "top_p" in text
    assert "number > 0 ≤ 1" in text
