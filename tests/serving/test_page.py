"""The page in Chromium with a running server."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from captioning import Captioner
from tests.serving.browser import CANVAS, caption_text, send_files, sentence_case, set_range, wait_for_captions
from tests.serving.conftest import LiveServer, encode

api = pytest.importorskip("playwright.sync_api", reason="requires playwright: pip install playwright")
api.expect.set_options(timeout=60_000)


def test_drop_an_image_and_hover_a_word(page: Any, captioners: dict[str, Captioner], images: list[bytes]) -> None:
    assert page.locator("#result").is_hidden()
    send_files(page, ("scene.jpg", images[0]), event_type="dragover")
    assert page.locator("#drop.drag-over").count() == 1
    wait_for_captions(page, lambda: send_files(page, ("scene.jpg", images[0])))
    expected = captioners["soft"](images[0])
    assert caption_text(page) == sentence_case(expected.text)
    assert page.locator("#status").inner_text() == f"{expected.text}, score {100 * expected.score:.0f} %"
    assert page.locator("#timing").inner_text().startswith("soft, ")
    assert page.locator("#drop.drag-over").count() == 0
    without_map = page.evaluate(CANVAS)
    page.hover(".viewer-word >> nth=1")
    assert page.evaluate(CANVAS) != without_map
    page.mouse.move(2, 2)
    assert page.evaluate(CANVAS) == without_map, "without the pointer, the plain photo is shown"
    assert page.locator(".viewer-playing").count() == 0, "the animation starts with Play"


@pytest.mark.parametrize("source", ["paste", "file", "sample"])
def test_other_image_sources(page: Any, images: list[bytes], drawn: Path, source: str) -> None:
    match source:
        case "paste":
            send_files(page, ("scene.jpg", images[0]), event_type="paste")
        case "file":
            page.set_input_files("#file", sorted((drawn / "images").iterdir())[0])
        case "sample":
            page.get_by_role("button", name="a cat").click()
    page.wait_for_selector(".viewer-word")
    assert page.locator("#error").inner_text() == ""


def test_changed_options_update_the_captions(
    captioned: Any, captioners: dict[str, Captioner], images: list[bytes]
) -> None:
    page, soft, hard = captioned, captioners["soft"], captioners["hard"]

    def expect_shown(caption: Any) -> None:
        api.expect(page.locator(".viewer-word")).to_have_text(sentence_case(caption.text).split())
        alternatives = caption.alternatives
        texts = [caption.text, *(item.text for item in alternatives)] if alternatives else []
        api.expect(page.locator(".viewer-tab-text")).to_have_text([sentence_case(text) for text in texts])

    set_range(page, "num_return_sequences", 3)
    expect_shown(soft.with_options(num_beams=3, num_return_sequences=3)(images[0]))
    assert page.input_value("[name=num_beams]") == "3"  # at least the number of captions
    assert page.locator("[name=temperature]").is_hidden()
    page.check("[name=do_sample][value=true]")
    sampling = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "num_return_sequences": 3}
    expect_shown(soft.with_options(**sampling)(images[0]))
    set_range(page, "seed", 7)
    expect_shown(soft.with_options(**sampling, seed=7)(images[0]))
    assert page.locator("[name=attention_mode]").is_hidden()
    page.get_by_role("button", name="Reset").click()
    expect_shown(soft(images[0]))
    page.select_option("[name=model]", "hard")
    expect_shown(hard(images[0]))
    page.select_option("[name=attention_mode]", "expectation")
    expect_shown(hard.with_options(attention_mode="expectation")(images[0]))
    parameters = page.request.get(f"{page.url}v1/models").json()["parameters"]
    assert page.locator("label:has([name=top_p])").get_attribute("title") == parameters["top_p"]["help"]


def test_soft_and_hard_side_by_side(captioned: Any, captioners: dict[str, Captioner], images: list[bytes]) -> None:
    page = captioned
    page.check("#compare")
    api.expect(page.locator(".viewer-words")).to_have_count(2)
    page.wait_for_selector("#status.visually-hidden", state="attached")
    for pane, name in enumerate(("soft", "hard")):
        assert caption_text(page, pane) == sentence_case(captioners[name](images[0]).text)
    boxes = [page.locator(".viewer-image").nth(pane).bounding_box() for pane in (0, 1)]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"]
    assert page.locator(".viewer-legend").all_inner_texts()[1].startswith("Yellow square")
    page.locator("[type=range] >> nth=0").fill("0.4")
    assert page.locator(".viewer-tools input").nth(1).input_value() == "0.4", "both viewers have the same colors"


def test_occlusion_by_hand(captioned: Any, captioners: dict[str, Captioner], images: list[bytes]) -> None:
    page = captioned
    page.click("#occlude")
    box = page.locator(".viewer-image").bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.7 * box["height"])

    with page.expect_response("**/v1/captions?*") as response:
        page.mouse.up()
    page.wait_for_selector("#comparison:visible")
    shown = response.value.json()["captions"][0]["caption"]
    assert caption_text(page) == sentence_case(shown)
    assert sentence_case(captioners["soft"](images[0]).text) in page.inner_text("#comparison")
    pixel = page.evaluate("""async () => {
        const image = document.querySelector(".viewer-image img");
        await image.decode();
        const context = document.createElement("canvas").getContext("2d");
        context.drawImage(image, 0, 0);
        return [...context.getImageData(image.naturalWidth / 3, image.naturalHeight / 3, 1, 1).data].slice(0, 3);
    }""")
    assert pixel == pytest.approx([124, 116, 104], abs=4)
    page.wait_for_selector(".occlusion-layer:focus")
    page.keyboard.press("ArrowDown")
    wait_for_captions(page, lambda: page.keyboard.press("Enter"))
    wait_for_captions(page, lambda: page.click("#restore"))
    assert caption_text(page) == sentence_case(captioners["soft"](images[0]).text)
    assert page.locator("#comparison").is_hidden()


def test_several_photos_at_once(page: Any, captioners: dict[str, Captioner], images: list[bytes]) -> None:
    send_files(page, ("a.jpg", images[0]), ("notes.txt", b"text"), ("b.jpg", images[1]))
    page.get_by_role("alert").filter(has_text="notes.txt: cannot be read as an image").wait_for()
    thumbnails = page.locator("#recent button")
    api.expect(thumbnails).to_have_count(2)
    assert caption_text(page) == sentence_case(captioners["soft"](images[0]).text)
    thumbnails.nth(0).click()
    assert caption_text(page) == sentence_case(captioners["soft"](images[1]).text)


def test_animated_and_unusual_formats_show_the_captioned_frame(page: Any) -> None:
    frames = [Image.new("RGB", (90, 60), color) for color in ("red", "blue")]
    for name, content in (
        ("moving.gif", encode(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=50)),
        ("scan.tiff", encode(frames[0], "TIFF")),
    ):
        wait_for_captions(page, lambda name=name, content=content: send_files(page, (name, content)))
        page.wait_for_timeout(150)  # the second frame of an animation
        with Image.open(io.BytesIO(page.locator(".viewer-image").screenshot())) as shown:
            red, _, blue = shown.convert("RGB").getpixel((shown.width // 2, shown.height // 2))
            assert red > 200 > 60 > blue, name


def test_camera(live_server: LiveServer, browser: Any) -> None:
    """Live captions of the fake device of Chromium; one frame at a time is captioned."""
    context = browser.new_context(permissions=["camera"])
    page = context.new_page()
    page.goto(live_server.url)
    page.wait_for_selector("html[data-ready]")
    in_flight: list[int] = [0]
    requests: list[int] = []

    def count(change: int) -> None:
        in_flight[0] += change
        requests.append(in_flight[0])

    page.on("request", lambda request: count(1) if "v1/captions" in request.url else None)
    page.on("requestfinished", lambda request: count(-1) if "v1/captions" in request.url else None)
    page.get_by_role("button", name="Live camera").click()
    page.wait_for_selector("#camera .viewer-content-word")
    page.get_by_text("captions per second").wait_for()
    page.wait_for_function("document.querySelector('#camera canvas').width > 0")
    page.wait_for_timeout(500)
    assert max(requests) == 1, "frames are dropped, not queued"
    assert len(requests) >= 2
    page.get_by_role("button", name="Keep this photo").click()
    page.wait_for_selector("#result .viewer-word")
    assert page.locator("#camera").is_hidden()
    context.close()


def test_save_as_html_and_png(captioned: Any, captioners: dict[str, Captioner], images: list[bytes]) -> None:
    set_range(captioned, "num_return_sequences", 2)
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


def test_errors_clear_the_old_result(captioned: Any, images: list[bytes]) -> None:
    page = captioned
    alert = page.get_by_role("alert")

    def expect_error(text: str) -> None:
        alert.filter(has_text=text).wait_for()
        assert page.locator("#result").is_hidden()

    send_files(page, ("notes.jpg", b"not an image"))
    expect_error("notes.jpg: cannot be read as an image")
    send_files(page, ("large.jpg", bytes(3_100_000)))
    expect_error("large.jpg: 3.1 MB exceed the limit of 3 MB")
    send_files(page)
    expect_error("No file received")
    page.route("**/v1/captions?*", lambda route: route.abort())
    send_files(page, ("scene.jpg", images[1]))
    expect_error("The server does not respond")
    page.unroute("**/v1/captions?*")
    wait_for_captions(page, lambda: send_files(page, ("scene.jpg", images[1])))
    assert alert.inner_text() == ""
    assert page.locator("#result").is_visible()


def test_newest_image_is_shown(captioned: Any, captioners: dict[str, Captioner], images: list[bytes]) -> None:
    """Pending requests and changed settings do not bring back an older image."""
    texts = [captioners["soft"](image).text for image in images]
    other = next(index for index, text in enumerate(texts) if text != texts[0])
    send_files(captioned, ("first.jpg", images[0]))
    send_files(captioned, ("other.jpg", images[other]))
    set_range(captioned, "num_return_sequences", 2)
    captioned.wait_for_selector(".viewer-tab")
    expected = captioners["soft"].with_options(num_beams=2, num_return_sequences=2)(images[other])
    assert caption_text(captioned) == sentence_case(expected.text)
