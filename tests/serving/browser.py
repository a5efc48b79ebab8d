"""Actions on the page of a running server, for tests in Chromium."""

import base64
from collections.abc import Callable
from typing import Any

# Playwright cannot drop or paste files, so a script dispatches these events.
DISPATCH_FILES = """([entries, type]) => {
    const files = new DataTransfer();
    for (const [name, content] of entries) {
        const bytes = Uint8Array.from(atob(content), (character) => character.charCodeAt());
        files.items.add(new File([bytes], name, { type: name.endsWith(".jpg") ? "image/jpeg" : "" }));
    }
    const event = type === "paste" ? new ClipboardEvent(type, { clipboardData: files, bubbles: true })
        : new DragEvent(type, { dataTransfer: files, bubbles: true, cancelable: true });
    document.body.dispatchEvent(event);
}"""
CANVAS = "document.querySelector('canvas').toDataURL()"


def send_files(page: Any, *files: tuple[str, bytes], event_type: str = "drop") -> None:
    page.evaluate(DISPATCH_FILES, [[[name, base64.b64encode(content).decode()] for name, content in files], event_type])


def caption_text(page: Any, pane: int = 0) -> str:
    words = page.locator(".viewer-words").nth(pane).locator(".viewer-word").all_inner_texts()
    return " ".join(words)


def sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]


def wait_for_captions(page: Any, action: Callable[[], object]) -> None:
    """Perform an action and wait until its captions are shown."""
    with page.expect_response("**/v1/captions?*"):
        action()
    page.wait_for_selector("#status.visually-hidden", state="attached")


def set_range(page: Any, name: str, value: float) -> None:
    script = "(field, value) => { field.value = value; field.dispatchEvent(new Event('input', { bubbles: true })); }"
    page.locator(f"[name={name}]").evaluate(script, value)
