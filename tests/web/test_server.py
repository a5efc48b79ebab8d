import dataclasses
import json
import os
import re
import struct
import sys
import zipfile
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image, ImageFile

from captioning import Captioner
from captioning.search import Search
from captioning.web.batching import Batcher
from captioning.web.schema import Answer, Options
from captioning.web.server import make_app
from captioning.web.uploads import Limits, _InMemory
from tests.web.conftest import LIMITS, encoded

WEB = Path(sys.modules["captioning.web"].__path__[0])
ADDRESS = "/v1/captions"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'


def form(*pictures: bytes | tuple[str, bytes]) -> list[tuple]:
    named = [one if isinstance(one, tuple) else (f"{number}.jpg", one) for number, one in enumerate(pictures)]
    return [("images", picture) for picture in named]


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


def assert_equal(described: dict, caption) -> None:
    """What the server said is what the captioner says."""
    assert described["caption"] == caption.text
    assert described["score"] == pytest.approx(caption.score, abs=1e-3)
    for word, chance, weights in zip(described["words"], caption.probabilities, caption.maps, strict=False):
        assert word["probability"] == pytest.approx(chance, abs=1e-3)
        np.testing.assert_allclose(word["map"], weights, atol=1e-3)


def test_a_picture_as_the_body_or_in_a_form(
    client: TestClient, captioners: dict[str, Captioner], pictures: list[bytes]
) -> None:
    expected = captioners["soft"](pictures[0])
    declared = {"content-type": "text/plain"}  # what it is told to be is of no interest
    for answer in (
        client.post(ADDRESS, content=pictures[0]),
        client.post(ADDRESS, content=pictures[0], headers=declared),
        client.post(ADDRESS, content=iter([pictures[0][:100], pictures[0][100:]])),  # of no declared length
        client.post(ADDRESS, files=form(("notes.txt", pictures[0]))),
    ):
        assert answer.status_code == 200
        assert answer.json()["model"] == "soft"
        (described,) = answer.json()["captions"]
        assert_equal(described, expected)
        assert described["window"] == [0, 0, 1, 1]
        Answer.model_validate(answer.json(), extra="forbid")


def test_many_pictures_in_their_order(
    client: TestClient, captioners: dict[str, Captioner], pictures: list[bytes]
) -> None:
    answer = client.post(ADDRESS, files=form(*pictures[:4]))
    expected = captioners["soft"](pictures[:4])
    assert len({caption.text for caption in expected}) > 1
    for described, caption in zip(answer.json()["captions"], expected, strict=True):
        assert_equal(described, caption)


@pytest.mark.parametrize(
    "options",
    [
        {"beam": 4, "n_best": 3},
        {"beam": 4, "n_best": 2, "groups": 2, "diversity": 2.0, "no_repeat": 1, "length_penalty": 0.5},
        {"minimum_length": 5, "maximum_length": 6},
        {"sample": True, "temperature": 1.5, "nucleus": 0.9, "top_k": 9, "seed": 7, "n_best": 4},
        {"model": "hard", "look": "argmax"},
        {"model": "hard", "look": "expect"},
        {"model": "hard", "look": "sample", "seed": 3},
    ],
    ids=str,
)
def test_options_are_those_of_the_captioner(
    client: TestClient, captioners: dict[str, Captioner], pictures: list[bytes], options: dict
) -> None:
    answer = client.post(ADDRESS, params=options, files=form(*pictures[:3]))
    assert answer.status_code == 200, answer.text
    settings = {name: value for name, value in options.items() if name != "model"}
    captioner = captioners[options.get("model", "soft")].with_options(**settings)
    for described, caption in zip(answer.json()["captions"], captioner(pictures[:3]), strict=True):
        assert_equal(described, caption)
        for other, of_captioner in zip(described["others"], caption.others, strict=True):
            assert_equal(other, of_captioner)
        at_one_place = options.get("look") in ("argmax", "sample")
        assert (described["field"] is not None) == at_one_place
    Answer.model_validate(answer.json(), extra="forbid")


def test_maps_can_be_left_out(client: TestClient, pictures: list[bytes]) -> None:
    (described,) = client.post(ADDRESS, params={"maps": False}, content=pictures[0]).json()["captions"]
    assert described["words"]
    assert all(word.keys() == {"word", "probability"} for word in described["words"])


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ({"beam": 0}, 422, "beam '0': "),
        ({"beam": 10**9}, 422, "less than or equal to 20"),
        ({"beam": "five"}, 422, "beam 'five': "),
        ({"maximum_length": 10**9}, 422, "maximum_length"),
        ({"temperature": 0}, 400, "temperature 0.0: must be more than 0"),
        ({"temperature": "nan"}, 422, "temperature 'nan'"),
        ({"nucleus": 1.5}, 400, "nucleus 1.5: a share above 0 and up to 1"),
        ({"top_k": -1}, 400, "top_k -1: must not be negative"),
        ({"n_best": 3, "beam": 2}, 400, "n_best 3: take 1 to 2, the size of the beam"),
        ({"n_best": 21, "sample": True}, 422, "n_best '21': "),
        ({"beam": 4, "groups": 3}, 400, "groups 3: must divide the beam of 4"),
        ({"minimum_length": 9}, 400, "minimum_length 9: take 1 to 8"),
        ({"look": "away"}, 422, "look 'away': "),
        ({"look": "argmax"}, 400, "needs hard attention"),
        ({"seed": -1}, 422, "seed '-1': "),
        ({"seed": 2**63}, 422, "seed"),
        ({"model": "other"}, 400, "no model 'other'; choose one of soft, hard"),
        ({"beams": 3}, 422, "beams '3': "),
    ],
    ids=str,
)
def test_wrong_options_are_told_in_a_sentence(
    client: TestClient, pictures: list[bytes], options: dict, status: int, said: str
) -> None:
    answer = client.post(ADDRESS, params=options, content=pictures[0])
    assert answer.status_code == status
    assert said in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]


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
    ids=lambda value: str(value)[:60],
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


def test_too_much_at_once_is_told_to_come_again(captioners: dict[str, Captioner], pictures: list[bytes]) -> None:
    with TestClient(make_app(captioners, batcher=Batcher(capacity=2)), base_url="http://localhost") as client:
        answer = client.post(ADDRESS, files=form(*pictures[:3]))
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert "come again" in answer.json()["detail"]
        assert client.post(ADDRESS, files=form(*pictures[:2])).status_code == 200


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


def test_who_calls_it_by_another_name_is_not_answered(captioners: dict[str, Captioner]) -> None:
    def status(bound_to: str, called: str) -> int:
        app = make_app(captioners, host=bound_to)
        return TestClient(app).get("/health", headers={"host": called}).status_code

    for called in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
        assert status("127.0.0.1", called) == 200
    for bound_to in ("127.0.0.1", "localhost", "::1"):
        assert status(bound_to, "evil.example") == 400
    assert status("0.0.0.0", "my-machine.example") == 200


def test_the_page_needs_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert "access-control-allow-origin" not in page.headers
    parts = re.findall(r'(?:src|href)="(?!data:)(.*?)"', page.text)
    assert sorted(parts) == ["index.css", "index.js", "viewer.css", "viewer.js"]
    for part in parts:
        answer = client.get(f"/{part}")
        assert answer.text == (WEB / part).read_text()
        assert answer.headers["content-type"].split(";")[0] in ("text/css", "text/javascript")
        assert not re.search(r"https?://|@import", answer.text)
    assert not re.search(r"<script>|<style|\bstyle=|\son\w+=|https?://", page.text)
    for hidden in ("/server.py", "/docs", "/redoc", "/models"):
        assert client.get(hidden).status_code == 404


def test_samples_and_nothing_else(client: TestClient) -> None:
    samples = client.get("/samples").json()
    assert "chelsea.png" in samples
    for name in samples:
        assert client.get(f"/samples/{name}").headers["content-type"].startswith("image/")
    for name in ("other.png", "..%2f__init__.py", "%2fetc%2fpasswd", "../../etc/passwd"):
        assert client.get(f"/samples/{name}").status_code == 404


def test_models_and_health(client: TestClient, captioners: dict[str, Captioner]) -> None:
    assert client.get("/health").json()["status"] == "ok"
    told = client.get("/v1/models").json()
    assert [(model["name"], model["attention"]) for model in told["models"]] == [("soft", "soft"), ("hard", "hard")]
    assert told["models"][0]["search"] == dataclasses.asdict(captioners["soft"].search)
    assert told["limits"] == dataclasses.asdict(LIMITS)


def test_the_api_knows_all_of_the_search_and_tells_of_it(client: TestClient) -> None:
    names = {field.name for field in dataclasses.fields(Search)} | {"model", "n_best", "look", "seed", "maps"}
    assert set(Options.model_fields) == names
    described = client.get("/openapi.json").json()
    operation = described["paths"][ADDRESS]["post"]
    assert {parameter["name"] for parameter in operation["parameters"]} == names
    assert all(parameter["description"] for parameter in operation["parameters"])
    assert "images" in operation["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/Answer")
    for status in ("400", "408", "413", "422", "503"):
        assert operation["responses"][status]["content"]["application/json"]["schema"]["$ref"].endswith("/Problem")


def test_limits_that_make_no_sense_are_refused() -> None:
    for wrong in ({"megabytes": 0}, {"megapixels": -1}, {"megabytes": float("nan")}, {"megapixels": float("inf")}):
        with pytest.raises(Exception, match=r"max-mega\w+ .*: take more than 0"):
            Limits(**wrong)
