"""The page and the REST API beside it: small, stateless, nothing written to disk, nothing fetched from elsewhere."""

import asyncio
import dataclasses
import importlib.util
import ipaddress
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioning import __version__, export, overlay
from captioning.captioner import Caption, Captioner
from captioning.errors import CaptioningError
from captioning.images import open_image
from captioning.web.batching import Batcher, BusyError, Upload
from captioning.web.schema import Answer, CaptionOptions, Options, OverlayOptions, Problem
from captioning.web.uploads import Limits, read_uploads

_FOLDER = Path(__file__).parent
_FILES = {
    "/": ("index.html", "text/html"),
    "/index.js": ("index.js", "text/javascript"),
    "/index.css": ("index.css", "text/css"),
    "/viewer.js": ("viewer.js", "text/javascript"),
    "/viewer.css": ("viewer.css", "text/css"),
}
_SAMPLES = ("chelsea.png", "rocket.jpg", "coffee.png", "astronaut.png", "camera.png")  # of scikit-image
_BODIES_AT_ONCE = 16  # more are left waiting in the network, not in memory
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_PICTURE = {"type": "string", "format": "binary"}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {"images": {"type": "array", "items": _PICTURE}},
                }
            },
            "image/*": {"schema": _PICTURE},
        },
    }
}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "a picture that cannot be read, or options that do not go together"},
    408: {"model": Problem, "description": "the pictures took too long to arrive"},
    413: {"model": Problem, "description": "more was sent than is taken"},
    422: {"model": Problem, "description": "an option that there is not, or out of range"},
    503: {"model": Problem, "description": "too much is waiting; Retry-After says when to come again"},
}


def _draw_page(name: str, caption: Caption) -> bytes:
    photo = open_image(caption.picture, export.PAGE_SIDE)
    return export.page(name, photo, caption, overlay.colour_table("light", overlay.OPACITY))


def _draw_panels(name: str, caption: Caption) -> bytes:
    return export.encoded_png(caption.overlay())


_DRAWERS = {"html": _draw_page, "png": _draw_panels}
_MEDIA_TYPES = {"html": "text/html", "png": "image/png"}


class Service:
    """What the routes share.

    Args:
        captioners: by name; the first is what captions if a request does not say.
        limits: of what a request may bring.
        batcher: where requests meet.
    """

    def __init__(self, captioners: Mapping[str, Captioner], limits: Limits, batcher: Batcher) -> None:
        self.captioners = captioners
        self.limits = limits
        self.batcher = batcher
        self._bodies = asyncio.Semaphore(_BODIES_AT_ONCE)
        self._drawing = asyncio.Semaphore(1)  # captions come first: overlays have one thread at most

    def choose(self, options: Options) -> tuple[str, Captioner]:
        name = options.model or next(iter(self.captioners))
        if name not in self.captioners:
            raise CaptioningError(f"no model '{name[:80]}'; choose one of {', '.join(self.captioners)}")
        return name, self.captioners[name].with_options(**options.for_captioner())

    async def read(self, request: Request) -> list[Upload]:
        async with self._bodies:
            return await read_uploads(request, self.limits)

    async def draw(self, name: str, caption: Caption, form: str) -> bytes:
        async with self._drawing:
            return await asyncio.to_thread(_DRAWERS[form], name, caption)


def make_app(
    captioners: Mapping[str, Captioner],
    limits: Limits = Limits(),
    batcher: Batcher | None = None,
    host: str = "127.0.0.1",
) -> FastAPI:
    """The application.

    Args:
        captioners: by name; the first is what captions if a request does not say.
        limits: of what a request may bring.
        batcher: where requests meet.
        host: that it will be bound to. On this machine's own, it answers only who calls it by such a name: no page from
            elsewhere can talk to it in another's (DNS rebinding).
    """
    service = Service(captioners, limits, batcher or Batcher(most_pixels=limits.pixels))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.batcher.close()

    app = FastAPI(
        title="captioning",
        description="A picture goes in; a sentence comes out, and for every word a map of where the model looked.",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # these two pages fetch their scripts from elsewhere
        redoc_url=None,
    )
    app.add_middleware(_SafeHeaders)
    if _is_loopback(host):
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]", host])
    _add_errors(app)
    _add_files(app)
    _add_api(app, service)
    return app


class _SafeHeaders:
    """Headers that keep a browser from running, embedding or keeping what it should not."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, send_with_headers)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _add_errors(app: FastAPI) -> None:
    """Every answer that is an error has one readable sentence as its ``detail``."""

    @app.exception_handler(RequestValidationError)
    def of_options(request: Request, error: RequestValidationError) -> JSONResponse:
        problems = [f"{problem['loc'][-1]} {problem['input']!r:.40}: {problem['msg']}" for problem in error.errors()]
        return JSONResponse({"detail": "; ".join(problems)}, 422)

    @app.exception_handler(CaptioningError)
    def of_input(request: Request, error: CaptioningError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 400)

    @app.exception_handler(BusyError)
    def of_load(request: Request, error: BusyError) -> JSONResponse:
        detail = "too many pictures are waiting already; come again in a few seconds"
        return JSONResponse({"detail": detail}, 503, {"Retry-After": "2"})


def _add_files(app: FastAPI) -> None:
    """The page, and photos to try it on where scikit-image has brought some."""
    for path, (name, media_type) in _FILES.items():
        response = Response((_FOLDER / name).read_bytes(), media_type=media_type)
        app.add_api_route(path, lambda response=response: response, include_in_schema=False)
    samples = _find_samples()

    @app.get("/samples", include_in_schema=False)
    def list_samples() -> list[str]:
        return list(samples)

    @app.get("/samples/{name}", include_in_schema=False)
    def sample(name: str) -> FileResponse:
        if name not in samples:
            raise HTTPException(404, f"no sample '{name[:80]}'")
        return FileResponse(samples[name], headers={"Cache-Control": "max-age=86400"})


def _find_samples() -> dict[str, Path]:
    found = importlib.util.find_spec("skimage")
    if found is None or found.origin is None:
        return {}
    folder = Path(found.origin).parent / "data"
    return {name: folder / name for name in _SAMPLES if (folder / name).is_file()}


def _add_api(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    def health() -> dict[str, Any]:
        """Whether the server is up, and how many pictures are being captioned or waiting."""
        return {"status": "ok", "version": __version__, "pictures": service.batcher.under_way}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        """The models to choose from, how each captions unless told otherwise, and what a request may bring."""
        described = [
            {
                "name": name,
                "attention": "hard" if captioner.decoder.hard else "soft",
                "look": captioner.look,
                "search": dataclasses.asdict(captioner.search),
            }
            for name, captioner in service.captioners.items()
        ]
        return {"models": described, "limits": dataclasses.asdict(service.limits)}

    @app.post(
        "/v1/captions",
        responses={200: {"model": Answer}, **_PROBLEMS},
        response_class=JSONResponse,
        openapi_extra=_BODY,
    )
    async def captions(request: Request, options: Annotated[CaptionOptions, Query()]) -> JSONResponse:
        """Caption one picture, sent as the body, or one or many, sent as ``images`` of a form."""
        name, captioner = service.choose(options)
        found = await service.batcher.caption(captioner, await service.read(request))
        return JSONResponse({"model": name, "captions": [caption.describe(options.maps) for caption in found]})

    @app.post(
        "/v1/overlays",
        responses={200: {"content": {kind: {"schema": _PICTURE} for kind in _MEDIA_TYPES.values()}}, **_PROBLEMS},
        response_class=Response,
        openapi_extra=_BODY,
    )
    async def overlays(request: Request, options: Annotated[OverlayOptions, Query()]) -> Response:
        """Caption one picture, and answer with a file that shows where the model looked."""
        _, captioner = service.choose(options)
        uploads = await service.read(request)
        if len(uploads) > 1:
            raise CaptioningError(f"{len(uploads)} pictures: an overlay is of one; send them one by one")
        (caption,) = await service.batcher.caption(captioner, uploads)
        content = await service.draw(uploads[0].name, caption, options.format)
        file = quote(f"{Path(uploads[0].name).stem}.{options.format}")
        disposition = {"Content-Disposition": f"attachment; filename*=utf-8''{file}"}
        return Response(content, media_type=_MEDIA_TYPES[options.format], headers=disposition)
