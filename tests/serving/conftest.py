"""Fixtures of the serving tests: untrained captioners, images and a running server."""

import io
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import uvicorn
from fastapi.testclient import TestClient
from PIL import Image

from captioning import Captioner
from captioning.caption import Caption
from captioning.serving.app import create_app
from captioning.serving.batching import DynamicBatcher
from captioning.serving.uploads import UploadLimits
from tests.conftest import make_captioner
from tests.serving.browser import send_files, wait_for_captions

CAPTIONS_URL = "/v1/captions"
LIMITS = UploadLimits(max_request_mb=3, max_image_megapixels=2, max_images=4, timeout_seconds=5)


@pytest.fixture(scope="session")
def captioners() -> dict[str, Captioner]:
    return {"soft": make_captioner(), "hard": make_captioner(attention="hard")}


@pytest.fixture
def client(captioners: dict[str, Captioner]) -> Iterator[TestClient]:
    with TestClient(create_app(captioners, LIMITS), base_url="http://127.0.0.1") as client:
        yield client


class LiveServer(NamedTuple):
    """A server that listens on a local port."""

    url: str
    batcher: DynamicBatcher


@pytest.fixture(scope="module")
def live_server(captioners: dict[str, Captioner]) -> Iterator[LiveServer]:
    batcher = DynamicBatcher(max_pixels=LIMITS.max_pixels)
    server = uvicorn.Server(
        uvicorn.Config(create_app(captioners, LIMITS, batcher), log_level="warning", timeout_graceful_shutdown=10)
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield LiveServer(f"http://127.0.0.1:{listener.getsockname()[1]}", batcher)
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def images(drawn: Path) -> list[bytes]:
    """Encoded synthetic images whose captions differ."""
    return [path.read_bytes() for path in sorted((drawn / "images").iterdir())[:20]]


@pytest.fixture
def page(browser_page: Any, live_server: LiveServer) -> Any:
    browser_page.set_default_timeout(60_000)
    browser_page.emulate_media(reduced_motion="reduce")
    browser_page.goto(live_server.url)
    browser_page.wait_for_selector("html[data-ready]")
    return browser_page


@pytest.fixture
def captioned(page: Any, images: list[bytes]) -> Any:
    wait_for_captions(page, lambda: send_files(page, ("scene.jpg", images[0])))
    return page


def encode(image: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def form(*images: bytes | tuple[str, bytes]) -> list[tuple]:
    """Multipart files of the field ``images``."""
    named = [image if isinstance(image, tuple) else (f"{index}.jpg", image) for index, image in enumerate(images)]
    return [("images", image) for image in named]


def assert_matches(fields: dict, caption: Caption) -> None:
    """Compare a caption of the REST API with one of the captioner."""
    assert fields["caption"] == caption.text
    assert fields["score"] == pytest.approx(caption.score, abs=1e-3)
    for word, prob, attention_map in zip(fields["words"], caption.token_probs, caption.attention_maps, strict=False):
        assert word["probability"] == pytest.approx(prob, abs=1e-3)
        np.testing.assert_allclose(word["attention_map"], attention_map, atol=1e-3)
