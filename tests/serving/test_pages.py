"""Files of the page, samples, documentation and source code that the server delivers."""

import importlib.util
import re
from io import BytesIO
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image

import captioning
from captioning.serving.samples import find_samples

PACKAGE_DIR = Path(captioning.__file__).parent


def test_page_loads_nothing_from_other_hosts(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert "access-control-allow-origin" not in page.headers
    documentation = client.get("/docs")
    pending = {*find_urls(page.text), *find_urls(documentation.text)}
    visited = {"."}
    while pending - visited:
        url = (pending - visited).pop()
        visited.add(url)
        response = client.get(f"/{url}")
        assert response.status_code == 200, url
        if url.endswith((".css", ".js")):
            assert response.headers["content-type"].split(";")[0] in ("text/css", "text/javascript")
            assert not re.search(r"https?://|@import", response.text)
            pending |= set(re.findall(r'^import .*? from "\./(.*?)";', response.text, re.MULTILINE | re.DOTALL))
    scripts = {"attention.js", "constants.js", "viewer.js", "camera.js", "docs.js", "index.js", "occlusion.js"}
    assert visited >= {*scripts, "index.css", "viewer.css", "model-card", "docs", "code", "openapi.json"}
    for text in (page.text, documentation.text):
        assert not re.search(r"<script>|<style|\bstyle=|\son\w+=|https?://", text)
    for path in ("/app.py", "/redoc", "/models"):
        assert client.get(path).status_code == 404


def find_urls(page: str) -> list[str]:
    return re.findall(r'(?:src|href)="(?!data:)(.*?)"', page)


def test_code_lists_the_source_and_no_other_files(client: TestClient) -> None:
    assert client.get("/code/captioner.py").text == (PACKAGE_DIR / "captioner.py").read_text()
    names = [url.removeprefix("code/") for url in find_urls(client.get("/code").text) if url.startswith("code/")]
    assert "serving/app.py" in names
    for name in ("models/pretrained/README.md", "..%2f..%2fpyproject.toml", "../../etc/passwd"):
        assert client.get(f"/code/{name}").status_code == 404


def test_samples_expose_no_other_files(client: TestClient) -> None:
    names = [sample["name"] for sample in client.get("/samples").json()]
    assert {"chelsea.jpg", "scene-1.jpg"} <= set(names)
    contents = set()
    for name in names:
        response = client.get(f"/samples/{name}")
        assert response.headers["content-type"] == "image/jpeg"
        contents.add(response.content)
        with Image.open(BytesIO(response.content)) as image:
            assert max(image.size) <= 800
    assert len(contents) == len(names)
    for name in ("other.png", "..%2f__init__.py", "%2fetc%2fpasswd", "../../etc/passwd"):
        assert client.get(f"/samples/{name}").status_code == 404


def test_samples_without_scikit_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert list(find_samples()) == ["scene-1.jpg", "scene-2.jpg", "scene-3.jpg"]
