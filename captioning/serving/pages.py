"""Routes of the page: its files, the samples, the documentation of the API and the model card."""

from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import PlainTextResponse, Response

from captioning.models import pretrained
from captioning.serving.samples import find_samples
from captioning.visualization.html import VIEWER_MODULES, read_asset, script

_STATIC = Path(__file__).parent / "static"
_PAGES = {"/": "index.html", "/docs": "docs.html"}
_MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_PACKAGE = Path(__file__).parent.parent
_SOURCE_SUFFIXES = (".py", ".js", ".css", ".html")


def add_pages(app: FastAPI) -> None:
    """Add all routes that are not part of the REST API."""
    for name in VIEWER_MODULES:
        _add_file(app, f"/{name}", script(name), ".js")
    _add_file(app, "/viewer.css", read_asset("viewer.css"), ".css")
    routes = {f"/{path.name}": path for path in _STATIC.iterdir() if path.suffix in (".js", ".css")}
    routes |= {route: _STATIC / name for route, name in _PAGES.items()}
    for route, path in routes.items():
        _add_file(app, route, path.read_text("utf-8"), path.suffix)
    _add_samples(app)
    _add_texts(app)


def _add_file(app: FastAPI, route: str, content: str, suffix: str) -> None:
    response = Response(content, media_type=_MEDIA_TYPES[suffix])
    app.add_api_route(route, lambda: response, include_in_schema=False)


def _add_samples(app: FastAPI) -> None:
    samples = find_samples()

    @app.get("/samples", include_in_schema=False)
    def list_samples() -> list[dict[str, Any]]:
        return [{"name": name, "title": sample.title} for name, sample in samples.items()]

    @app.get("/samples/{name}", include_in_schema=False)
    def sample(name: str) -> Response:
        if name not in samples:
            raise HTTPException(404, f"no sample image '{name[:80]}'; see /samples")
        headers = {"Cache-Control": "max-age=86400"}
        return Response(samples[name].read_jpeg(), media_type="image/jpeg", headers=headers)


def _add_texts(app: FastAPI) -> None:
    """Add the model card and the source code as plain text, since the page links to no other host."""
    card = Path(pretrained.__file__).with_name("README.md").read_text("utf-8")
    sources = {
        path.relative_to(_PACKAGE).as_posix(): path
        for path in sorted(_PACKAGE.rglob("*"))
        if path.suffix in _SOURCE_SUFFIXES
    }

    @app.get("/model-card", include_in_schema=False)
    def model_card() -> PlainTextResponse:
        return PlainTextResponse(card)

    @app.get("/code", include_in_schema=False)
    def list_code() -> Response:
        links = "".join(f'<li><a href="code/{name}">{name}</a></li>' for name in sources)
        page = (_STATIC / "code.html").read_text("utf-8").replace("$files", links)
        return Response(page, media_type="text/html")

    @app.get("/code/{name:path}", include_in_schema=False)
    def code(name: str) -> PlainTextResponse:
        if name not in sources:
            raise HTTPException(404, f"no source file '{name[:80]}'; see /code")
        return PlainTextResponse(sources[name].read_text("utf-8"))
