"""Uploads: image formats, invalid files, limits of a request, and no writes to disk."""

import dataclasses
import json
import os
import re
import struct
import sys
import zipfile
import zlib
from io import BytesIO

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image, ImageFile

from captioning import Captioner
from captioning.serving.app import create_app
from captioning.serving.uploads import UploadLimits, _InMemoryMultiPartParser
from captioning.utils.errors import CaptioningError
from tests.serving.conftest import CAPTIONS_URL, LIMITS, assert_matches, encode, form

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8))


def large_png() -> bytes:
    """A PNG file of 20,000 × 20,000 pixels and a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(20_000 * 2501), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def zip_archive() -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("photo.jpg", b"0" * 1000)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("truncated.jpg", encode(noise(200, 100), "JPEG")[:3000]),
        ("truncated.png", encode(noise(200, 100))[:3000]),
        ("drawing.svg", SVG),
        ("archive.zip", zip_archive()),
        ("text.jpg", b"not an image"),
        ("nothing.jpg", b""),
        ("page.gif", b"GIF89a<script>alert(1)</script>"),
        ("document.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_image_is_named(client: TestClient, images: list[bytes], name: str, content: bytes) -> None:
    response = client.post(CAPTIONS_URL, files=form((name, content)))
    assert response.status_code == 400
    assert re.fullmatch(rf"{name}: cannot be read as an image \(.+\)", response.json()["detail"])
    assert client.post(CAPTIONS_URL, content=content).status_code == 400
    assert client.post(CAPTIONS_URL, content=images[0]).status_code == 200


def test_image_with_too_many_pixels_is_not_decoded(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(image: ImageFile.ImageFile) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
    for size, image in ((None, large_png()), ("2000 × 1001", encode(Image.new("RGB", (2000, 1001)), "JPEG"))):
        response = client.post(CAPTIONS_URL, files=form(("large.png", image)))
        assert response.status_code == 400
        detail = response.json()["detail"]
        assert detail.startswith("large.png: exceeds the maximum number of pixels" if size is None else
                                 f"large.png: {size} pixels exceed the maximum of 2 megapixels")  # fmt: skip
        assert size is None or detail.endswith("restart the server with a larger --max-image-megapixels")


def test_image_formats(client: TestClient, captioners: dict[str, Captioner]) -> None:
    image = noise(90, 60)
    rotated = Image.Exif()
    rotated[0x0112] = 6
    gray = Image.fromarray(np.random.default_rng(1).integers(0, 2**16, (60, 90), dtype=np.uint16))
    for content in (
        encode(image.convert("P"), "GIF", save_all=True, append_images=[noise(90, 60).convert("P")] * 3),
        encode(image.convert("CMYK"), "JPEG"),
        encode(gray, "PNG"),
        encode(image, "JPEG", exif=rotated),
        encode(image.convert("RGBA"), "WEBP"),
        encode(image, "TIFF"),
        encode(image, "BMP"),
        encode(image, "AVIF"),
    ):
        response = client.post(CAPTIONS_URL, content=content)
        assert response.status_code == 200, response.text
        assert_matches(response.json()["captions"][0], captioners["soft"](content))


@pytest.mark.parametrize(
    ("request_options", "status", "message"),
    [
        ({}, 400, "no image; send one as the request body"),
        (
            {"data": {"num_beams": "3"}, "files": form(b"x")},
            400,
            "unknown form field 'num_beams'; send images as 'images' and options as query parameters",
        ),
        ({"files": [("images", (None, b"x"))]}, 400, "form field 'images' must be a file"),
        ({"files": form(*[b"x"] * 5)}, 400, "Too many files. Maximum number of files is 4"),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400, "Missing boundary"),
        (
            {"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=y"}},
            400,
            "the form cannot be parsed",
        ),
        (
            {"content": b"--y--", "headers": {"content-type": "multipart/form-data; boundary=y"}},
            400,
            "no image; send at least one file",
        ),
        ({"content": b"x" * 3_200_000}, 413, "the request body exceeds 3 MB, got 3.2 MB; downscale the images"),
        ({"content": b"x" * 3_000_001}, 413, "restart the server with a larger --max-request-mb"),
        ({"content": iter([b"x" * 1_000_000] * 4)}, 413, "the request body exceeds 3 MB"),
        ({"content": iter([b"x" * 1_000_000] * 40)}, 413, "the request body exceeds 3 MB"),
        ({"files": form(b"x" * 3_000_000)}, 413, "the request body exceeds 3 MB"),
        ({"content": b"x", "headers": {"content-length": str(10**12)}}, 413, "the request body exceeds 3 MB"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else str(value),
)
def test_invalid_body(client: TestClient, request_options: dict, status: int, message: str) -> None:
    response = client.post(CAPTIONS_URL, **request_options)
    assert response.status_code == status
    assert message in response.json()["detail"]


def test_body_that_never_arrives(captioners: dict[str, Captioner]) -> None:
    import asyncio

    async def receive_nothing() -> dict:
        await asyncio.sleep(60)
        return {}

    messages = []

    async def send(message: dict) -> None:
        messages.append(message)

    scope = {
        "type": "http", "method": "POST", "path": CAPTIONS_URL, "query_string": b"",
        "headers": [(b"host", b"localhost")], "http_version": "1.1", "scheme": "http",
    }  # fmt: skip
    asyncio.run(create_app(captioners, dataclasses.replace(LIMITS, timeout_seconds=0.1))(scope, receive_nothing, send))
    assert messages[0]["status"] == 408
    assert "0.1 seconds" in json.loads(messages[1]["body"])["detail"]


_opened_for_writing: list | None = None


def _audit(event: str, arguments: tuple) -> None:
    if _opened_for_writing is not None and event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            _opened_for_writing.append(path)


def test_nothing_is_opened_for_writing_to_disk(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    global _opened_for_writing
    sys.addaudithook(_audit)
    large = encode(noise(1000, 900), "BMP")
    assert 2_500_000 < len(large) < 3_000_000
    client.post(CAPTIONS_URL, content=large)  # performs lazy imports, which may write bytecode
    _opened_for_writing = []
    try:
        assert client.post(CAPTIONS_URL, files=form(large)).status_code == 200
        assert client.post(CAPTIONS_URL, content=large).status_code == 200
        assert _opened_for_writing == []
        # Starlette's default, to check that the test detects writes.
        monkeypatch.setattr(_InMemoryMultiPartParser, "spool_max_size", 1_000_000)
        assert client.post(CAPTIONS_URL, files=form(large)).status_code == 200
        assert _opened_for_writing
    finally:
        _opened_for_writing = None


def test_invalid_limits() -> None:
    for name in ("max_request_mb", "max_image_megapixels"):
        for value in (0, -1, float("nan"), float("inf")):
            with pytest.raises(CaptioningError, match=rf"{name} must be in \(0, 10000\], got {value:g}"):
                UploadLimits(**{name: value})
