import dataclasses
import json
import re
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from captioning import Captioner
from captioning.search import Search
from captioning.web.batching import Batcher
from captioning.web.schema import Answer, Options
from captioning.web.server import make_app
from tests.web.conftest import ADDRESS, LIMITS, assert_equal, encoded, form

WEB = Path(sys.modules["captioning.web"].__path__[0])


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


@pytest.mark.parametrize("name", sorted(set(Options.model_fields) - {"model"}))
def test_no_value_of_an_option_makes_the_server_fail(client: TestClient, pictures: list[bytes], name: str) -> None:
    ways = ({"beam": 2}, {"sample": True}, {"model": "hard", "look": "sample"})
    for value in ("", "x", "-1", "0", "1", "2", "0.01", "1e-300", "1e300", "inf", str(2**63), "9" * 500):
        for way in ways:
            answer = client.post(ADDRESS, params={**way, name: value, "maps": False}, content=pictures[0])
            assert answer.status_code in (200, 400, 422), (way, value)
            assert answer.status_code == 200 or answer.json()["detail"]


def test_overlays_are_those_of_the_captioner(
    client: TestClient, captioners: dict[str, Captioner], pictures: list[bytes]
) -> None:
    options = {"model": "hard", "beam": 3, "n_best": 2}
    drawn = client.post(
        "/v1/overlays", params={**options, "format": "png"}, files=form(("söme scene.jpg", pictures[0]))
    )
    assert drawn.headers["content-disposition"] == "attachment; filename*=utf-8''s%C3%B6me%20scene.png"
    caption = captioners["hard"].with_options(beam=3, n_best=2)(pictures[0])
    with Image.open(BytesIO(drawn.content)) as sheet:
        assert sheet.format == "PNG"
        np.testing.assert_array_equal(np.asarray(sheet), np.asarray(caption.overlay()))
    page = client.post("/v1/overlays", params={**options, "format": "html"}, files=form(("<scene>.jpg", pictures[0])))
    assert page.headers["content-type"].startswith("text/html")
    assert "&lt;scene&gt;.jpg" in page.text
    for one in (caption, *caption.others):
        assert json.dumps(one.text) in page.text
    assert "data:image/jpeg;base64," in page.text


def test_an_overlay_is_of_one_picture(client: TestClient, pictures: list[bytes]) -> None:
    answer = client.post("/v1/overlays", files=form(*pictures[:2]))
    assert (answer.status_code, answer.json()["detail"][:11]) == (400, "2 pictures:")
    assert client.post("/v1/overlays", params={"format": "gif"}, content=pictures[0]).status_code == 422
    assert client.post("/v1/overlays", content=b"text").status_code == 400
    strip = encoded(Image.new("RGB", (1, 200_000)))
    with Image.open(BytesIO(client.post("/v1/overlays", params={"format": "png"}, content=strip).content)) as sheet:
        assert sheet.height < 5000


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
        ({"temperature": 0}, 422, "temperature '0': "),
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


def test_too_much_at_once_is_told_to_come_again(captioners: dict[str, Captioner], pictures: list[bytes]) -> None:
    with TestClient(make_app(captioners, batcher=Batcher(capacity=2)), base_url="http://localhost") as client:
        answer = client.post(ADDRESS, files=form(*pictures[:3]))
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert "come again" in answer.json()["detail"]
        assert client.post(ADDRESS, files=form(*pictures[:2])).status_code == 200


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
    names = {field.name for field in dataclasses.fields(Search)} | {"model", "n_best", "look", "seed"}
    assert set(Options.model_fields) == names
    described = client.get("/openapi.json").json()
    for address, own in ((ADDRESS, "maps"), ("/v1/overlays", "format")):
        operation = described["paths"][address]["post"]
        assert {parameter["name"] for parameter in operation["parameters"]} == {*names, own}
        assert all(parameter["description"] for parameter in operation["parameters"])
        assert "images" in operation["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
        for status in ("400", "408", "413", "422", "503"):
            assert operation["responses"][status]["content"]["application/json"]["schema"]["$ref"].endswith("/Problem")
    answer = described["paths"][ADDRESS]["post"]["responses"]["200"]["content"]["application/json"]
    assert answer["schema"]["$ref"].endswith("/Answer")
    assert {"image/png", "text/html"} <= set(operation["responses"]["200"]["content"])
