"""The page in Chromium with a running server."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from captioning import Captioner
from tests.serving.conftest import LiveServer, encode

api = pytest.importorskip("playwright.sync_api", reason="requires playwright: pip install playwright")
api.expect.set_options(timeout=60_000)

# Playwright cannot drop or paste files, so a script dispatches these events.
DISPATCH_FILE = """([name, content, type]) => {
    const files = new DataTransfer();
    if (name) files.items.add(new File([Uint8Array.from(atob(content), (character) => character.charCodeAt())], name));
    const event = type === "paste" ? new ClipboardEvent(type, { clipboardData: files, bubbles: true })
        : new DragEvent(type, { dataTransfer: files, bubbles: true, cancelable: true });
    document.body.dispatchEvent(event);
}"""
CANVAS = "document.querySelector('canvas').toDataURL()"


def send_file(page: Any, name: str, content: bytes, event_type: str = "drop") -> None:
    page.evaluate(DISPATCH_FILE, [name, base64.b64encode(content).decode(), event_type])


def caption_text(page: Any) -> str:
    return " ".join(page.locator(".viewer-word").all_inner_texts())


@pytest.fixture
def page(browser_page: Any, live_server: LiveServer) -> Any:
    """The page without automatic playback."""
    browser_page.set_default_timeout(60_000)
    browser_page.emulate_media(reduced_motion="reduce")
    browser_page.goto(live_server.url)
    browser_page.wait_for_selector("#examples button")
    return browser_page


@pytest.fixture
def captioned(page: Any, images: list[bytes]) -> Any:
    send_file(page, "scene.jpg", images[0])
    page.wait_for_selector(".viewer-word")
    return page


def wait_for_captions(page: Any, action: Callable[[], object]) -> None:
    """Perform an action and wait until its captions are shown."""
    with page.expect_response("**/v1/captions?*"):
        action()
    page.wait_for_selector("#status.visually-hidden")


def test_drop_an_image_and_hover_a_word(page: Any, captioners: dict[str, Captioner], images: list[bytes]) -> None:
    assert page.locator("#viewer").is_hidden()
    send_file(page, "scene.jpg", images[0], "dragover")
    assert page.locator("#drop.drag-over").count() == 1
    send_file(page, "scene.jpg", images[0])
    page.wait_for_selector(".viewer-word")
    expected = captioners["soft"](images[0])
    assert caption_text(page) == expected.text
    assert page.locator("#status").inner_text() == f"{expected.text}, score {100 * expected.score:.0f} %"
    assert page.locator("#drop.drag-over").count() == 0
    assert page.locator(".viewer-image img").evaluate("image => image.naturalWidth") > 0
    without_map = page.evaluate(CANVAS)
    page.hover(".viewer-word >> nth=1")
    first = page.evaluate(CANVAS)
    page.hover(".viewer-word >> nth=2")
    assert len({without_map, first, page.evaluate(CANVAS)}) == 3


def test_playback_reveals_the_caption_word_by_word(page: Any, images: list[bytes]) -> None:
    def is_opaque() -> list[bool]:
        opacity = "words => words.map((word) => getComputedStyle(word).opacity)"
        return [float(value) == 1 for value in page.locator(".viewer-word").evaluate_all(opacity)]

    page.emulate_media(reduced_motion="no-preference")
    page.clock.install(time=0)
    page.clock.pause_at(1000)
    send_file(page, "scene.jpg", images[0])
    page.wait_for_selector(".viewer-playing .viewer-word:nth-child(1).viewer-current")
    assert is_opaque() == [index < 1 for index in range(len(is_opaque()))]
    first = page.evaluate(CANVAS)
    page.clock.run_for(1000)
    page.wait_for_selector(".viewer-playing .viewer-word:nth-child(2).viewer-current")
    assert is_opaque() == [index < 2 for index in range(len(is_opaque()))]
    assert page.evaluate(CANVAS) != first
    page.clock.run_for(20_000)
    page.wait_for_selector(".viewer:not(.viewer-playing)")
    assert all(is_opaque())


@pytest.mark.parametrize("source", ["paste", "file", "example"])
def test_other_image_sources(page: Any, images: list[bytes], drawn: Path, source: str) -> None:
    match source:
        case "paste":
            send_file(page, "scene.jpg", images[0], "paste")
        case "file":
            page.set_input_files("#file", sorted((drawn / "images").iterdir())[0])
        case "example":
            page.get_by_role("button", name="chelsea").click()
    page.wait_for_selector(".viewer-word")
    assert page.locator("#error").inner_text() == ""


def test_changed_settings_update_the_captions(
    captioned: Any, captioners: dict[str, Captioner], images: list[bytes]
) -> None:
    page, soft, hard = captioned, captioners["soft"], captioners["hard"]

    def expect_shown(caption: Any) -> None:
        api.expect(page.locator(".viewer-word")).to_have_text(caption.words)
        alternatives = caption.alternatives
        texts = [caption.text, *(item.text for item in alternatives)] if alternatives else []
        api.expect(page.locator(".viewer-tab-text")).to_have_text(texts)

    page.click("summary")
    page.fill("[name=num_return_sequences]", "3")
    expect_shown(soft.with_options(num_beams=3, num_return_sequences=3)(images[0]))
    assert page.input_value("[name=num_beams]") == "3"  # at least the number of captions
    assert page.locator("[name=temperature]").is_hidden()
    page.check("[name=do_sample][value=true]")
    page.fill("[name=temperature]", "1.5")
    page.fill("[name=seed]", "7")
    expect_shown(soft.with_options(do_sample=True, temperature=1.5, seed=7, num_return_sequences=3)(images[0]))
    assert page.locator("[name=attention_mode]").is_hidden()
    page.check("[name=do_sample][value=false]")
    page.fill("[name=num_return_sequences]", "1")
    page.select_option("[name=model]", "hard")
    expect_shown(hard(images[0]))
    page.hover(".viewer-word >> nth=0")
    argmax_canvas = page.evaluate(CANVAS)
    wait_for_captions(page, lambda: page.select_option("[name=attention_mode]", "expectation"))
    expect_shown(hard.with_options(attention_mode="expectation")(images[0]))
    page.hover(".viewer-word >> nth=0")
    assert page.evaluate(CANVAS) != argmax_canvas


def test_settings_have_the_range_help_and_default_of_the_server(page: Any, captioners: dict[str, Captioner]) -> None:
    response = page.request.get(f"{page.url}v1/models")
    parameters = response.json()["parameters"]
    for name, low, high in (
        ("num_beams", 1, 20),
        ("temperature", 0.05, 100),
        ("top_p", 0.05, 1),
        ("seed", 0, 2**53 - 1),
    ):
        field = page.locator(f"[name={name}]")
        assert (float(field.get_attribute("min")), float(field.get_attribute("max"))) == (low, high)
        assert field.locator("xpath=..").get_attribute("title") == parameters[name]["help"]
    for name in ("num_beams", "temperature", "top_k", "top_p"):
        assert float(page.input_value(f"[name={name}]")) == getattr(captioners["soft"].generation, name)


def test_image_format_that_the_browser_cannot_display(page: Any, drawn: Path) -> None:
    with Image.open(sorted((drawn / "images").iterdir())[0]) as image:
        send_file(page, "scan.tiff", encode(image, "TIFF"))
    page.wait_for_selector(".viewer-word")
    page.get_by_role("alert").filter(has_text="scan.tiff: this browser cannot display the image format").wait_for()


def test_save_as_html_and_png(captioned: Any, captioners: dict[str, Captioner], images: list[bytes]) -> None:
    captioned.click("summary")
    captioned.fill("[name=num_return_sequences]", "2")
    captioned.wait_for_selector(".viewer-tab")
    files = {}
    for name in ("Save as HTML", "Save as PNG"):
        with captioned.expect_download() as download:
            captioned.get_by_role("button", name=name).click()
        files[download.value.suggested_filename] = Path(download.value.path()).read_bytes()
    assert list(files) == ["scene.html", "scene.png"]
    caption = captioners["soft"].with_options(num_beams=2, num_return_sequences=2)(images[0])
    assert f'"{caption.alternatives[0].text}"' in files["scene.html"].decode()
    with Image.open(io.BytesIO(files["scene.png"])) as sheet:
        np.testing.assert_array_equal(np.asarray(sheet), np.asarray(caption.overlay()))


def test_errors_are_shown_and_the_previous_caption_stays(captioned: Any, images: list[bytes]) -> None:
    page, text_before = captioned, caption_text(captioned)
    alert = page.get_by_role("alert")

    def expect_error(text: str) -> None:
        alert.filter(has_text=text).wait_for()
        assert alert.is_visible()
        assert caption_text(page) == text_before

    send_file(page, "notes.jpg", b"not an image")
    expect_error("notes.jpg: cannot be read as an image")
    send_file(page, "large.jpg", bytes(3_000_001))
    expect_error("large.jpg: exceeds 3 MB")
    send_file(page, "", b"")
    expect_error("No file received")
    page.click("summary")
    page.fill("[name=num_beams]", "99")
    expect_error("Beam size:")
    page.fill("[name=num_beams]", "2.5")
    expect_error("num_beams '2.5': Input should be a valid integer")
    page.fill("[name=num_beams]", "1")
    alert.filter(has_not_text="num_beams").wait_for(state="attached")
    page.route("**/v1/captions?*", lambda route: route.abort())
    send_file(page, "scene.jpg", images[1])
    expect_error("The server does not respond")
    page.unroute("**/v1/captions?*")
    wait_for_captions(page, lambda: send_file(page, "scene.jpg", images[1]))
    assert alert.inner_text() == ""


def test_image_is_captioned_after_invalid_settings_are_corrected(page: Any, images: list[bytes]) -> None:
    page.click("summary")
    num_beams = page.input_value("[name=num_beams]")
    page.fill("[name=num_return_sequences]", "50")
    assert page.input_value("[name=num_beams]") == num_beams
    send_file(page, "scene.jpg", images[0])
    page.get_by_role("alert").filter(has_text="Number of captions:").wait_for()
    wait_for_captions(page, lambda: page.fill("[name=num_return_sequences]", "2"))
    api.expect(page.locator(".viewer-tab")).to_have_count(2)
    assert page.get_by_role("alert").inner_text() == ""


def test_newest_image_is_shown(captioned: Any, captioners: dict[str, Captioner], images: list[bytes]) -> None:
    """Pending requests and changed settings do not bring back an older image."""
    texts = [captioners["soft"](image).text for image in images]
    other = next(index for index, text in enumerate(texts) if text != texts[0])
    send_file(captioned, "first.jpg", images[0])
    send_file(captioned, "other.jpg", images[other])
    captioned.click("summary")
    captioned.fill("[name=num_return_sequences]", "2")
    captioned.wait_for_selector(".viewer-tab")
    assert (
        caption_text(captioned)
        == captioners["soft"].with_options(num_beams=2, num_return_sequences=2)(images[other]).text
    )


@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overlaps_or_overflows(captioned: Any, width: int, scheme: str) -> None:
    page = captioned
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 700})
    page.click("summary")
    page.select_option("[name=model]", "hard")
    page.check("[name=do_sample][value=true]")
    page.fill("[name=num_return_sequences]", "3")
    api.expect(page.locator(".viewer-tab")).to_have_count(3)
    page.wait_for_selector("#status.visually-hidden")
    send_file(page, f"{'long-' * 15}name.jpg", b"text")
    page.wait_for_selector("#error:not(:empty)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    selectors = (
        "#drop, #examples button, summary, form > label, fieldset, #error, .viewer-image, .viewer-word, .viewer-play, "
    )
    boxes = [
        box
        for element in page.locator(selectors + ".viewer-tab, #save button").all()
        if (box := element.bounding_box())
    ]
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


def test_all_controls_are_reachable_by_keyboard(captioned: Any) -> None:
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
        """[...document.querySelectorAll("button, input, select")].filter((element) => !(element.labels?.length
            || element.innerText.trim() || element.ariaLabel || element.querySelector("img[alt]"))).length"""
    )
    assert unnamed == 0
    page.locator(".viewer-word >> nth=0").focus()
    before = page.evaluate(CANVAS)
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.className").startswith("viewer-word")
    assert page.evaluate(CANVAS) != before
