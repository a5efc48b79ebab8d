"""What tests of the page and its server share: two captioners that have learnt nothing, and pictures for them."""

import io
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import uvicorn
from fastapi.testclient import TestClient
from PIL import Image

from captioning import Captioner
from captioning.captioner import Caption
from captioning.web.batching import Batcher
from captioning.web.server import make_app
from captioning.web.uploads import Limits
from tests.conftest import make_captioner

ADDRESS = "/v1/captions"
LIMITS = Limits(megabytes=3, megapixels=2, pictures=4, seconds=5)


@pytest.fixture(scope="session")
def captioners() -> dict[str, Captioner]:
    return {"soft": make_captioner(), "hard": make_captioner(attention="hard")}


@pytest.fixture
def client(captioners: dict[str, Captioner]) -> Iterator[TestClient]:
    with TestClient(make_app(captioners, LIMITS), base_url="http://127.0.0.1") as client:
        yield client


class Live(NamedTuple):
    """A server that really listens."""

    address: str
    batcher: Batcher


@pytest.fixture(scope="module")
def live(captioners: dict[str, Captioner]) -> Iterator[Live]:
    batcher = Batcher(most_pixels=LIMITS.pixels)
    server = uvicorn.Server(
        uvicorn.Config(make_app(captioners, LIMITS, batcher), log_level="warning", timeout_graceful_shutdown=10)
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield Live(f"http://127.0.0.1:{listener.getsockname()[1]}", batcher)
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def pictures(drawn: Path) -> list[bytes]:
    """Scenes that are not captioned alike."""
    return [path.read_bytes() for path in sorted((drawn / "images").iterdir())[:20]]


def encoded(image: Image.Image, format: str = "PNG", **settings) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **settings)
    return buffer.getvalue()


def form(*pictures: bytes | tuple[str, bytes]) -> list[tuple]:
    named = [one if isinstance(one, tuple) else (f"{number}.jpg", one) for number, one in enumerate(pictures)]
    return [("images", picture) for picture in named]


def assert_equal(described: dict, caption: Caption) -> None:
    """What the server said is what the captioner says."""
    assert described["caption"] == caption.text
    assert described["score"] == pytest.approx(caption.score, abs=1e-3)
    for word, chance, weights in zip(described["words"], caption.probabilities, caption.maps, strict=False):
        assert word["probability"] == pytest.approx(chance, abs=1e-3)
        np.testing.assert_allclose(word["map"], weights, atol=1e-3)
