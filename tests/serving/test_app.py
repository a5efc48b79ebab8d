import dataclasses
import json
import re
from io import BytesIO

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from captioning import Captioner
from captioning.generation import GenerationConfig
from captioning.serving.app import create_app
from captioning.serving.batching import DynamicBatcher
from captioning.serving.schemas import CaptionsResponse, GenerationParams
from tests.serving.conftest import CAPTIONS_URL, LIMITS, assert_matches, encode, form


def test_image_as_body_or_form(client: TestClient, captioners: dict[str, Captioner], images: list[bytes]) -> None:
    expected = captioners["soft"](images[0])
    headers = {"content-type": "text/plain"}  # the declared type is ignored
    for response in (
        client.post(CAPTIONS_URL, content=images[0]),
        client.post(CAPTIONS_URL, content=images[0], headers=headers),
        client.post(CAPTIONS_URL, content=iter([images[0][:100], images[0][100:]])),  # without Content-Length
        client.post(CAPTIONS_URL, files=form(("notes.txt", images[0]))),
    ):
        assert response.status_code == 200
        assert response.json()["model"] == "soft"
        (fields,) = response.json()["captions"]
        assert_matches(fields, expected)
        assert fields["crop_box"] == [0, 0, 1, 1]
        CaptionsResponse.model_validate(response.json(), extra="forbid")


def test_several_images_keep_their_order(
    client: TestClient, captioners: dict[str, Captioner], images: list[bytes]
) -> None:
    response = client.post(CAPTIONS_URL, files=form(*images[:4]))
    expected = captioners["soft"](images[:4])
    assert len({caption.text for caption in expected}) > 1
    for fields, caption in zip(response.json()["captions"], expected, strict=True):
        assert_matches(fields, caption)


def test_unreadable_image_does_not_fail_the_others(
    client: TestClient, captioners: dict[str, Captioner], images: list[bytes]
) -> None:
    response = client.post(CAPTIONS_URL, files=form(images[0], ("notes.txt", b"text"), images[1]))
    assert response.status_code == 200
    first, failed, last = response.json()["captions"]
    assert_matches(first, captioners["soft"](images[0]))
    assert failed["error"].startswith("notes.txt: cannot be read as an image (not an image")
    assert_matches(last, captioners["soft"](images[1]))
    assert response.json()["seconds"] > 0
    CaptionsResponse.model_validate(response.json(), extra="forbid")
    all_failed = client.post(CAPTIONS_URL, files=form(("a.txt", b"text"), ("b.txt", b"text")))
    assert all_failed.status_code == 400
    assert re.match(r"a\.txt: .*; b\.txt: ", all_failed.json()["detail"])


@pytest.mark.parametrize(
    "params",
    [
        {"num_beams": 4, "num_return_sequences": 3},
        {
            "num_beams": 4,
            "num_return_sequences": 2,
            "num_beam_groups": 2,
            "diversity_penalty": 2.0,
            "no_repeat_ngram_size": 1,
            "length_penalty": 0.5,
        },
        {"min_length": 5, "max_length": 6},
        {"do_sample": True, "temperature": 1.5, "top_p": 0.9, "top_k": 9, "seed": 7, "num_return_sequences": 4},
        {"model": "hard", "attention_mode": "argmax"},
        {"model": "hard", "attention_mode": "expectation"},
        {"model": "hard", "attention_mode": "sample", "seed": 3},
    ],
    ids=str,
)
def test_parameters_reach_the_captioner(
    client: TestClient, captioners: dict[str, Captioner], images: list[bytes], params: dict
) -> None:
    response = client.post(CAPTIONS_URL, params=params, files=form(*images[:3]))
    assert response.status_code == 200, response.text
    options = {name: value for name, value in params.items() if name != "model"}
    captioner = captioners[params.get("model", "soft")].with_options(**options)
    for fields, caption in zip(response.json()["captions"], captioner(images[:3]), strict=True):
        assert_matches(fields, caption)
        for alternative, expected in zip(fields["alternatives"], caption.alternatives, strict=True):
            assert_matches(alternative, expected)
        has_one_location = params.get("attention_mode") in ("argmax", "sample")
        assert (fields["receptive_field"] is not None) == has_one_location
    CaptionsResponse.model_validate(response.json(), extra="forbid")


@pytest.mark.parametrize("name", sorted(set(GenerationParams.model_fields) - {"model"}))
def test_extreme_parameter_values_are_handled(client: TestClient, images: list[bytes], name: str) -> None:
    base_params = ({"num_beams": 2}, {"do_sample": True}, {"model": "hard", "attention_mode": "sample"})
    for value in ("", "x", "-1", "0", "1", "2", "0.01", "1e-300", "1e300", "inf", str(2**63), "9" * 500):
        for params in base_params:
            response = client.post(
                CAPTIONS_URL, params={**params, name: value, "attention_maps": False}, content=images[0]
            )
            assert response.status_code in (200, 400, 422), (params, value)
            assert response.status_code == 200 or response.json()["detail"]


def test_overlays_match_the_captioner(
    client: TestClient, captioners: dict[str, Captioner], images: list[bytes]
) -> None:
    params = {"model": "hard", "num_beams": 3, "num_return_sequences": 2}
    sheet_response = client.post(
        "/v1/overlays", params={**params, "format": "png"}, files=form(("söme scene.jpg", images[0]))
    )
    assert sheet_response.headers["content-disposition"] == "attachment; filename*=utf-8''s%C3%B6me%20scene.png"
    caption = captioners["hard"].with_options(num_beams=3, num_return_sequences=2)(images[0])
    with Image.open(BytesIO(sheet_response.content)) as sheet:
        assert sheet.format == "PNG"
        np.testing.assert_array_equal(np.asarray(sheet), np.asarray(caption.overlay()))
    page = client.post("/v1/overlays", params={**params, "format": "html"}, files=form(("<scene>.jpg", images[0])))
    assert page.headers["content-type"].startswith("text/html")
    assert "&lt;scene&gt;.jpg" in page.text
    for hypothesis in (caption, *caption.alternatives):
        assert json.dumps(hypothesis.text) in page.text
    assert "data:image/jpeg;base64," in page.text


def test_overlay_requires_one_image(client: TestClient, images: list[bytes]) -> None:
    response = client.post("/v1/overlays", files=form(*images[:2]))
    assert response.status_code == 400
    assert response.json()["detail"].startswith("expected one image for an overlay, got 2;")
    assert client.post("/v1/overlays", params={"format": "gif"}, content=images[0]).status_code == 422
    assert client.post("/v1/overlays", content=b"text").status_code == 400
    strip = encode(Image.new("RGB", (1, 200_000)))
    with Image.open(BytesIO(client.post("/v1/overlays", params={"format": "png"}, content=strip).content)) as sheet:
        assert sheet.height < 5000


def test_attention_maps_are_optional(client: TestClient, images: list[bytes]) -> None:
    (fields,) = client.post(CAPTIONS_URL, params={"attention_maps": False}, content=images[0]).json()["captions"]
    assert fields["words"]
    assert all(word.keys() == {"word", "probability", "context_gate"} for word in fields["words"])


@pytest.mark.parametrize(
    ("params", "status", "message"),
    [
        ({"num_beams": 0}, 422, "num_beams '0': "),
        ({"num_beams": 10**9}, 422, "less than or equal to 20"),
        ({"num_beams": "five"}, 422, "num_beams 'five': "),
        ({"max_length": 10**9}, 422, "max_length"),
        ({"temperature": 0}, 422, "temperature '0': "),
        ({"temperature": "nan"}, 422, "temperature 'nan'"),
        ({"top_p": 1.5}, 422, "top_p '1.5': Input should be less than or equal to 1"),
        ({"temperature": 0.5}, 400, "temperature has no effect without sampling"),
        ({"do_sample": True, "num_beams": 4}, 400, "num_beams has no effect with do_sample"),
        ({"top_k": -1}, 422, "top_k '-1': Input should be greater than or equal to 0"),
        ({"num_return_sequences": 3, "num_beams": 2}, 400, "num_return_sequences must be in [1, 2], got 3"),
        ({"num_return_sequences": 21, "do_sample": True}, 422, "num_return_sequences '21': "),
        ({"num_beams": 4, "num_beam_groups": 3}, 400, "num_beam_groups must divide num_beams (4), got 3"),
        ({"min_length": 9}, 400, "min_length must be <= max_length (8), got 9"),
        ({"attention_mode": "none"}, 422, "attention_mode 'none': "),
        ({"attention_mode": "argmax"}, 400, "hard attention"),
        ({"seed": -1}, 422, "seed '-1': "),
        ({"seed": 2**63}, 422, "seed"),
        ({"model": "other"}, 400, "unknown model 'other'; choose one of soft, hard"),
        ({"beams": 3}, 422, "beams '3': "),
        ({"temperature": 0.7}, 400, "temperature has no effect without sampling"),
        ({"num_beams": 3, "do_sample": True}, 400, "num_beams has no effect with do_sample"),
        ({"num_beams": 3, "diversity_penalty": 1}, 400, "diversity_penalty has no effect without groups"),
        ({"length_penalty": 1}, 400, "length_penalty has no effect without beam search"),
        ({"seed": 3}, 400, "seed has no effect without do_sample"),
    ],
    ids=str,
)
def test_invalid_parameters_are_reported_in_one_line(
    client: TestClient, images: list[bytes], params: dict, status: int, message: str
) -> None:
    response = client.post(CAPTIONS_URL, params=params, content=images[0])
    assert response.status_code == status
    assert message in response.json()["detail"]
    assert "\n" not in response.json()["detail"]


def test_full_queue_returns_503(captioners: dict[str, Captioner], images: list[bytes]) -> None:
    with TestClient(create_app(captioners, batcher=DynamicBatcher(capacity=2)), base_url="http://localhost") as client:
        response = client.post(CAPTIONS_URL, files=form(*images[:3]))
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert "too many images are pending; retry" in response.json()["detail"]
        assert client.post(CAPTIONS_URL, files=form(*images[:2])).status_code == 200


def test_foreign_host_header_is_rejected_on_loopback(captioners: dict[str, Captioner]) -> None:
    def status(host: str, header: str) -> int:
        app = create_app(captioners, host=host)
        return TestClient(app).get("/health", headers={"host": header}).status_code

    for header in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
        assert status("127.0.0.1", header) == 200
    for host in ("127.0.0.1", "localhost", "::1"):
        assert status(host, "evil.example") == 400
    assert status("0.0.0.0", "my-machine.example") == 200


def test_preview_shows_the_captioned_frame(client: TestClient) -> None:
    frames = [Image.new("RGB", (1600, 800), color) for color in ("red", "blue")]
    animation = encode(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=100)
    response = client.post("/v1/previews", files=form(("moving.gif", animation)))
    assert response.headers["content-type"] == "image/jpeg"
    with Image.open(BytesIO(response.content)) as preview:
        assert preview.size == (1200, 600)
        red, _, blue = preview.getpixel((600, 300))
        assert red > 200 > 60 > blue
    failed = client.post("/v1/previews", files=form(("notes.txt", b"text")))
    assert (failed.status_code, failed.json()["detail"][:10]) == (400, "notes.txt:")


def test_health_and_models(client: TestClient, captioners: dict[str, Captioner]) -> None:
    health = client.get("/health").json()
    assert (health["status"], health["pending_images"]) == ("ok", 0)
    response = client.get("/v1/models").json()
    assert [(model["name"], model["attention"]) for model in response["models"]] == [("soft", "soft"), ("hard", "hard")]
    assert response["models"][0]["generation"] == dataclasses.asdict(captioners["soft"].generation)
    assert response["models"][1]["attention_mode"] == captioners["hard"].attention_mode
    assert response["sampling_defaults"] == {"temperature": 0.7, "top_p": 0.9}
    assert response["limits"] == dataclasses.asdict(LIMITS)


def test_models_describe_every_generation_setting(client: TestClient) -> None:
    """Help and bounds come from GenerationConfig; the server only adds limits."""
    parameters = client.get("/v1/models").json()["parameters"]
    fields = {field.name: field for field in dataclasses.fields(GenerationConfig)}
    assert set(parameters) == {*fields, "num_return_sequences", "seed"}
    for name, field in fields.items():
        assert parameters[name]["help"] == field.metadata["help"]
    assert parameters["top_p"] == {
        "type": "number", "help": fields["top_p"].metadata["help"], "exclusive_minimum": 0, "maximum": 1
    }  # fmt: skip
    assert (parameters["num_beams"]["minimum"], parameters["num_beams"]["maximum"]) == (1, 20)
    assert parameters["temperature"]["minimum"] > 0
    assert parameters["do_sample"]["type"] == "boolean"


def test_openapi_covers_every_generation_setting(client: TestClient) -> None:
    names = {field.name for field in dataclasses.fields(GenerationConfig)}
    names |= {"model", "num_return_sequences", "attention_mode", "seed"}
    assert set(GenerationParams.model_fields) == names
    openapi = client.get("/openapi.json").json()
    for url, extra in ((CAPTIONS_URL, "attention_maps"), ("/v1/overlays", "format")):
        operation = openapi["paths"][url]["post"]
        assert {parameter["name"] for parameter in operation["parameters"]} == {*names, extra}
        assert all(parameter["description"] for parameter in operation["parameters"])
        assert "images" in operation["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
        for status in ("400", "408", "413", "422", "503"):
            assert operation["responses"][status]["content"]["application/json"]["schema"]["$ref"].endswith(
                "/ErrorResponse"
            )
    response = openapi["paths"][CAPTIONS_URL]["post"]["responses"]["200"]["content"]["application/json"]
    assert response["schema"]["$ref"].endswith("/CaptionsResponse")
    assert {"image/png", "text/html"} <= set(operation["responses"]["200"]["content"])
