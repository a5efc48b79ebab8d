"""What tests of the page and its server share: two captioners that have learnt nothing, and pictures for them."""

import io
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import uvicorn
from fastapi.testclient import TestClient
from PIL import Image

from captioning import Captioner
from captioning.web.batching import Batcher
from captioning.web.server import make_app
from captioning.web.uploads import Limits
from tests.conftest import make_captioner

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
    server = uvicorn.Server(uvicorn.Config(make_app(captioners, LIMITS, batcher), log_level="warning"))
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
