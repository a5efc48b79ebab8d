"""The page in a real Chromium, talking to a real server."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from captioning import Captioner
from tests.web.conftest import Live, encoded

api = pytest.importorskip("playwright.sync_api", reason="needs a browser's driver: pip install playwright")
api.expect.set_options(timeout=60_000)

# Files as they come from a desktop or a clipboard: the browser only lets its own scripts make them.
DROP = """([name, content, kind]) => {
    const files = new DataTransfer();
    if (name) files.items.add(new File([Uint8Array.from(atob(content), (one) => one.charCodeAt())], name));
    const event = kind === "paste" ? new ClipboardEvent(kind, { clipboardData: files, bubbles: true })
        : new DragEvent(kind, { dataTransfer: files, bubbles: true, cancelable: true });
    document.body.dispatchEvent(event);
}"""
CANVAS = "document.querySelector('canvas').toDataURL()"


def give(page: Any, name: str, content: bytes, kind: str = "drop") -> None:
    page.evaluate(DROP, [name, base64.b64encode(content).decode(), kind])


def words(page: Any) -> str:
    return " ".join(page.locator(".viewer-word").all_inner_texts())


@pytest.fixture
def page(browser_page: Any, live: Live) -> Any:
    """The page, which does not play by itself."""
    browser_page.set_default_timeout(60_000)
    browser_page.emulate_media(reduced_motion="reduce")
    browser_page.goto(live.address)
    browser_page.wait_for_selector("#samples button")
    return browser_page


@pytest.fixture
def captioned(page: Any, pictures: list[bytes]) -> Any:
    give(page, "scene.jpg", pictures[0])
    page.wait_for_selector(".viewer-word")
    return page


def answered(page: Any, act: Callable[[], object]) -> None:
    """Do something, and wait until it has been answered and shown."""
    with page.expect_response("**/v1/captions?*"):
        act()
    page.wait_for_selector("#message.spoken")


def test_a_picture_is_dropped_and_a_word_hovered(
    page: Any, captioners: dict[str, Captioner], pictures: list[bytes]
) -> None:
    assert page.locator("#viewer").is_hidden()
    give(page, "scene.jpg", pictures[0], "dragover")
    assert page.locator("#drop.over").count() == 1
    give(page, "scene.jpg", pictures[0])
    page.wait_for_selector(".viewer-word")
    expected = captioners["soft"](pictures[0])
    assert words(page) == expected.text
    assert page.locator("#message").inner_text() == f"{expected.text}, {100 * expected.score:.0f} % sure"
    assert page.locator("#drop.over").count() == 0
    assert page.locator(".viewer-photo img").evaluate("image => image.naturalWidth") > 0
    bare = page.evaluate(CANVAS)
    page.hover(".viewer-word >> nth=1")
    first = page.evaluate(CANVAS)
    page.hover(".viewer-word >> nth=2")
    assert len({bare, first, page.evaluate(CANVAS)}) == 3


def test_the_caption_appears_word_by_word(page: Any, pictures: list[bytes]) -> None:
    def clear() -> list[bool]:
        opacity = "words => words.map((word) => getComputedStyle(word).opacity)"
        return [float(one) == 1 for one in page.locator(".viewer-word").evaluate_all(opacity)]

    page.emulate_media(reduced_motion="no-preference")
    page.clock.install(time=0)
    page.clock.pause_at(1000)
    give(page, "scene.jpg", pictures[0])
    page.wait_for_selector(".viewer-playing .viewer-word:nth-child(1).viewer-shown")
    assert clear() == [number < 1 for number in range(len(clear()))]
    first = page.evaluate(CANVAS)
    page.clock.run_for(1000)
    page.wait_for_selector(".viewer-playing .viewer-word:nth-child(2).viewer-shown")
    assert clear() == [number < 2 for number in range(len(clear()))]
    assert page.evaluate(CANVAS) != first
    page.clock.run_for(20_000)
    page.wait_for_selector(".viewer:not(.viewer-playing)")
    assert all(clear())


@pytest.mark.parametrize("kind", ["paste", "choose", "sample"])
def test_a_picture_also_comes_by(page: Any, pictures: list[bytes], drawn: Path, kind: str) -> None:
    match kind:
        case "paste":
            give(page, "scene.jpg", pictures[0], "paste")
        case "choose":
            page.set_input_files("#file", sorted((drawn / "images").iterdir())[0])
        case "sample":
            page.get_by_role("button", name="chelsea").click()
    page.wait_for_selector(".viewer-word")
    assert page.locator("#problem").inner_text() == ""


def test_options_are_switched(captioned: Any, captioners: dict[str, Captioner], pictures: list[bytes]) -> None:
    page, soft, hard = captioned, captioners["soft"], captioners["hard"]

    def shows(caption: Any) -> None:
        api.expect(page.locator(".viewer-word")).to_have_text(caption.words)
        others = [caption.text, *(other.text for other in caption.others)] if caption.others else []
        api.expect(page.locator(".viewer-tab-text")).to_have_text(others)

    page.click("summary")
    page.fill("[name=n_best]", "3")
    shows(soft.with_options(beam=3, n_best=3)(pictures[0]))
    assert page.input_value("[name=beam]") == "3"  # no fewer than captions
    assert page.locator("[name=temperature]").is_hidden()
    page.check("[name=sample][value=true]")
    page.fill("[name=temperature]", "1.5")
    page.fill("[name=seed]", "7")
    shows(soft.with_options(sample=True, temperature=1.5, seed=7, n_best=3)(pictures[0]))
    assert page.locator("[name=look]").is_hidden()
    page.check("[name=sample][value=false]")
    page.fill("[name=n_best]", "1")
    page.select_option("[name=model]", "hard")
    shows(hard(pictures[0]))
    page.hover(".viewer-word >> nth=0")
    at_one_place = page.evaluate(CANVAS)
    answered(page, lambda: page.select_option("[name=look]", "expect"))
    shows(hard.with_options(look="expect")(pictures[0]))
    page.hover(".viewer-word >> nth=0")
    assert page.evaluate(CANVAS) != at_one_place


def test_a_picture_that_the_browser_cannot_show(page: Any, drawn: Path) -> None:
    with Image.open(sorted((drawn / "images").iterdir())[0]) as image:
        give(page, "scan.tiff", encoded(image, "TIFF"))
    page.wait_for_selector(".viewer-word")
    page.get_by_role("alert").filter(has_text="scan.tiff: this browser cannot show such a picture").wait_for()


def test_what_is_shown_can_be_saved(captioned: Any, captioners: dict[str, Captioner], pictures: list[bytes]) -> None:
    captioned.click("summary")
    captioned.fill("[name=n_best]", "2")
    captioned.wait_for_selector(".viewer-tab")
    files = {}
    for name in ("Save as a page", "Save as a PNG"):
        with captioned.expect_download() as download:
            captioned.get_by_role("button", name=name).click()
        files[download.value.suggested_filename] = Path(download.value.path()).read_bytes()
    assert list(files) == ["scene.html", "scene.png"]
    caption = captioners["soft"].with_options(beam=2, n_best=2)(pictures[0])
    assert f'"{caption.others[0].text}"' in files["scene.html"].decode()
    with Image.open(io.BytesIO(files["scene.png"])) as sheet:
        np.testing.assert_array_equal(np.asarray(sheet), np.asarray(caption.overlay()))


def test_what_is_wrong_is_said_and_nothing_is_lost(captioned: Any, live: Live, pictures: list[bytes]) -> None:
    page, before = captioned, words(captioned)
    problem = page.get_by_role("alert")

    def said(text: str) -> None:
        problem.filter(has_text=text).wait_for()
        assert problem.is_visible()
        assert words(page) == before

    give(page, "notes.jpg", b"not a picture")
    said("notes.jpg: cannot be read as a picture")
    give(page, "large.jpg", bytes(3_000_001))
    said("large.jpg: larger than 3 MB")
    give(page, "", b"")
    said("That was not a file")
    page.click("summary")
    page.fill("[name=beam]", "99")
    said("Beam size:")
    page.fill("[name=beam]", "2.5")
    said("beam '2.5': Input should be a valid integer")
    page.fill("[name=beam]", "1")
    problem.filter(has_not_text="beam").wait_for(state="attached")
    page.route("**/v1/captions?*", lambda route: route.abort())
    give(page, "scene.jpg", pictures[1])
    said("The server does not answer")
    page.unroute("**/v1/captions?*")
    answered(page, lambda: give(page, "scene.jpg", pictures[1]))
    assert problem.inner_text() == ""


def test_options_that_are_wrong_can_be_set_right(page: Any, pictures: list[bytes]) -> None:
    """And the picture that was given with them is captioned then."""
    page.click("summary")
    beam = page.input_value("[name=beam]")
    page.fill("[name=n_best]", "50")
    assert page.input_value("[name=beam]") == beam
    give(page, "scene.jpg", pictures[0])
    page.get_by_role("alert").filter(has_text="Captions:").wait_for()
    answered(page, lambda: page.fill("[name=n_best]", "2"))
    api.expect(page.locator(".viewer-tab")).to_have_count(2)
    assert page.get_by_role("alert").inner_text() == ""


def test_the_newest_picture_is_what_is_shown(
    captioned: Any, captioners: dict[str, Captioner], pictures: list[bytes]
) -> None:
    """Whatever is still under way, and whichever option changes meanwhile."""
    texts = [captioners["soft"](picture).text for picture in pictures]
    other = next(number for number, text in enumerate(texts) if text != texts[0])
    give(captioned, "first.jpg", pictures[0])
    give(captioned, "other.jpg", pictures[other])
    captioned.click("summary")
    captioned.fill("[name=n_best]", "2")
    captioned.wait_for_selector(".viewer-tab")
    assert words(captioned) == captioners["soft"].with_options(beam=2, n_best=2)(pictures[other]).text


@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overlaps_or_is_cut(captioned: Any, width: int, scheme: str) -> None:
    page = captioned
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 700})
    page.click("summary")
    page.select_option("[name=model]", "hard")
    page.check("[name=sample][value=true]")
    page.fill("[name=n_best]", "3")
    api.expect(page.locator(".viewer-tab")).to_have_count(3)
    page.wait_for_selector("#message.spoken")
    give(page, f"{'long-' * 15}name.jpg", b"text")
    page.wait_for_selector("#problem:not(:empty)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    parts = (
        "#drop, #samples button, summary, form > label, fieldset, #problem, .viewer-photo, .viewer-word, .viewer-play, "
    )
    boxes = [box for one in page.locator(parts + ".viewer-tab, #save button").all() if (box := one.bounding_box())]
    assert len(boxes) > 20
    for number, box in enumerate(boxes):
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        for other in boxes[:number]:
            apart_across = other["x"] + other["width"] <= box["x"] + 1 or box["x"] + box["width"] <= other["x"] + 1
            apart_down = other["y"] + other["height"] <= box["y"] + 1 or box["y"] + box["height"] <= other["y"] + 1
            assert apart_across or apart_down, (box, other)
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(colour.removeprefix("rgb(").split(",")[0]) < 128) == (scheme == "dark")


def test_all_is_within_reach_of_the_keyboard(captioned: Any) -> None:
    page, reached = captioned, []
    page.locator("body").press("Home")
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        if reached[-1] == "BODY":
            break
    assert reached[0] == "file"
    assert {"BUTTON", "SUMMARY"} <= set(reached)
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, input, select")].filter((one) =>
            !(one.labels?.length || one.innerText.trim() || one.ariaLabel || one.querySelector("img[alt]"))).length"""
    )
    assert unnamed == 0
    page.locator(".viewer-word >> nth=0").focus()
    before = page.evaluate(CANVAS)
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.className").startswith("viewer-word")
    assert page.evaluate(CANVAS) != before
