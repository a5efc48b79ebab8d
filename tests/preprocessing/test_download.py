import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from captioning.preprocessing.download import download
from captioning.preprocessing.image import open_image
from captioning.utils.errors import CaptioningError


@pytest.fixture
def url(photo: Path) -> Iterator[str]:
    """Address of a server with an image, an endless file, a slow one and a page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/missing.jpg":
                self.send_error(404)
                return
            if self.path == "/moved.jpg":
                self.send_response(302)
                self.send_header("Location", "/photo.jpg")
                self.end_headers()
                return
            self.send_response(200)
            self.end_headers()
            try:
                if self.path == "/large.jpg":
                    self.wfile.write(bytes(200_000))
                elif self.path == "/slow.jpg":
                    for _ in range(50):
                        self.wfile.write(b"x")
                        time.sleep(0.02)
                else:
                    self.wfile.write(photo.read_bytes() if self.path == "/photo.jpg" else b"<html>")
            except OSError:  # the client has closed the connection
                pass

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_url_is_opened_like_its_file(url: str, photo: Path) -> None:
    for name in ("photo.jpg", "moved.jpg"):
        np.testing.assert_array_equal(np.asarray(open_image(f"{url}/{name}")), np.asarray(open_image(photo)))


def test_errors_name_the_url(url: str) -> None:
    for name, message in (("missing.jpg", "the server returned 404 Not Found"), ("page.jpg", "not an image")):
        with pytest.raises(CaptioningError, match=message) as caught:
            open_image(f"{url}/{name}")
        assert str(caught.value).startswith(f"{url}/{name}: ")
    with pytest.raises(CaptioningError, match="cannot be downloaded"):
        open_image("http://127.0.0.1:1/photo.jpg")
    with pytest.raises(CaptioningError, match="cannot be downloaded"):
        open_image("http://[/photo.jpg")


def test_size_and_time_are_limited(url: str) -> None:
    with pytest.raises(CaptioningError, match=r"large\.jpg: larger than 0\.1 MB"):
        download(f"{url}/large.jpg", max_mb=0.1)
    start = time.monotonic()
    with pytest.raises(CaptioningError, match=r"slow\.jpg: cannot be downloaded \(not within 0\.2 seconds\)"):
        download(f"{url}/slow.jpg", timeout=0.2)
    assert time.monotonic() - start < 0.9
