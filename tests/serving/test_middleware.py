import re

import pytest
from fastapi.testclient import TestClient

from tests.serving.conftest import CAPTIONS_URL, form


def test_requests_are_logged(client: TestClient, images: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "captioning.serving")
    client.post(CAPTIONS_URL, params={"num_beams": 2}, files=form(("secret.jpg", images[0])))
    client.get("/missing%0Aforged line")
    first, second = caplog.messages
    assert re.fullmatch(r"testclient POST /v1/captions\?num_beams=2 200 \d+\.\d{3} s", first)
    assert re.fullmatch(r"testclient GET /missing\\nforged line 404 \d+\.\d{3} s", second)
    assert "secret" not in caplog.text
