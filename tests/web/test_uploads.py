"""What is sent to the server: pictures of all kinds, and what only claims to be one."""

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
from captioning.web.server import make_app
from captioning.web.uploads import Limits, _InMemory
from tests.web.conftest import ADDRESS, LIMITS, assert_equal, encoded, form

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8))


def large_png() -> bytes:
    """All of 20,000 × 20,000 pixels, in a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(20_000 * 2501), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def zipped() -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("photo.jpg", b"0" * 1000)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("truncated.jpg", encoded(noise(200, 100), "JPEG")[:3000]),
        ("truncated.png", encoded(noise(200, 100))[:3000]),
        ("drawing.svg", SVG),
        ("archive.zip", zipped()),
        ("text.jpg", b"not a picture at all"),
        ("nothing.jpg", b""),
        ("page.gif", b"GIF89a<script>alert(1)</script>"),
        ("document.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_picture_is_named(client: TestClient, pictures: list[bytes], name: str, content: bytes) -> None:
    answer = client.post(ADDRESS, files=form(pictures[0], (name, content)))
    assert answer.status_code == 400
    assert re.fullmatch(
        rf"{name}: cannot be read as a picture \(.+\); save it again as JPEG or PNG", answer.json()["detail"]
    )
    assert client.post(ADDRESS, content=content).status_code == 400
    assert client.post(ADDRESS, content=pictures[0]).status_code == 200


def test_too_many_pixels_are_not_even_decoded(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(image: ImageFile.ImageFile) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
    for picture in (large_png(), encoded(Image.new("RGB", (2000, 1001)), "JPEG")):
        answer = client.post(ADDRESS, files=form(("large.png", picture)))
        assert answer.status_code == 400
        assert answer.json()["detail"].startswith("large.png: has more pixels than is safe to open")


def test_all_kinds_of_pictures(client: TestClient, captioners: dict[str, Captioner]) -> None:
    photo = noise(90, 60)
    turned = Image.Exif()
    turned[0x0112] = 6
    grey = Image.fromarray(np.random.default_rng(1).integers(0, 2**16, (60, 90), dtype=np.uint16))
    for picture in (
        encoded(photo.convert("P"), "GIF", save_all=True, append_images=[noise(90, 60).convert("P")] * 3),
        encoded(photo.convert("CMYK"), "JPEG"),
        encoded(grey, "PNG"),
        encoded(photo, "JPEG", exif=turned),
        encoded(photo.convert("RGBA"), "WEBP"),
        encoded(photo, "TIFF"),
        encoded(photo, "BMP"),
        encoded(photo, "AVIF"),
    ):
        answer = client.post(ADDRESS, content=picture)
        assert answer.status_code == 200, answer.text
        assert_equal(answer.json()["captions"][0], captioners["soft"](picture))


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        ({}, 400, "no picture: send one as the body"),
        (
            {"data": {"beam": "3"}, "files": form(b"x")},
            400,
            "field 'beam': pictures are 'images', and options go into the",
        ),
        ({"files": [("images", (None, b"x"))]}, 400, "field 'images': must be a file"),
        ({"files": form(*[b"x"] * 5)}, 400, "Too many files. Maximum number of files is 4"),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400, "Missing boundary"),
        (
            {"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=y"}},
            400,
            "the form cannot be read",
        ),
        ({"content": b"--y--", "headers": {"content-type": "multipart/form-data; boundary=y"}}, 400, "no picture"),
        ({"content": b"x" * 3_000_001}, 413, "more than 3 MB were sent"),
        ({"content": iter([b"x" * 1_000_000] * 4)}, 413, "more than 3 MB were sent"),
        ({"content": iter([b"x" * 1_000_000] * 40)}, 413, "more than 3 MB were sent"),
        ({"files": form(b"x" * 3_000_000)}, 413, "more than 3 MB were sent"),
        ({"content": b"x", "headers": {"content-length": str(10**12)}}, 413, "more than 3 MB were sent"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else str(value),
)
def test_a_body_that_will_not_do(client: TestClient, request_: dict, status: int, said: str) -> None:
    answer = client.post(ADDRESS, **request_)
    assert answer.status_code == status
    assert said in answer.json()["detail"]


def test_a_body_that_does_not_come(captioners: dict[str, Captioner]) -> None:
    import asyncio

    async def never() -> dict:
        await asyncio.sleep(60)
        return {}

    sent = []

    async def keep(message: dict) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": ADDRESS, "query_string": b"", "headers": [(b"host", b"localhost")],
        "http_version": "1.1", "scheme": "http",
    }  # fmt: skip
    asyncio.run(make_app(captioners, dataclasses.replace(LIMITS, seconds=0.1))(scope, never, keep))
    assert sent[0]["status"] == 408
    assert "0.1 seconds" in json.loads(sent[1]["body"])["detail"]


_written: list | None = None


def _watch(event: str, arguments: tuple) -> None:
    if _written is not None and event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            _written.append(path)


def test_nothing_is_written_to_disk(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    global _written
    sys.addaudithook(_watch)
    large = encoded(noise(1000, 900), "BMP")
    assert 2_500_000 < len(large) < 3_000_000
    client.post(ADDRESS, content=large)  # what is imported on the way has been
    _written = []
    try:
        assert client.post(ADDRESS, files=form(large)).status_code == 200
        assert client.post(ADDRESS, content=large).status_code == 200
        assert _written == []
        monkeypatch.setattr(_InMemory, "spool_max_size", 1_000_000)  # as it is in Starlette: this must be seen
        assert client.post(ADDRESS, files=form(large)).status_code == 200
        assert _written
    finally:
        _written = None


def test_limits_that_make_no_sense_are_refused() -> None:
    for wrong in ({"megabytes": 0}, {"megapixels": -1}, {"megabytes": float("nan")}, {"megapixels": float("inf")}):
        with pytest.raises(Exception, match=r"max-mega\w+ .*: take more than 0"):
            Limits(**wrong)
