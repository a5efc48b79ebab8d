"""Web page and REST API: stateless, without writing to disk and without requests to other hosts."""

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

from captioning import __version__
from captioning.caption import Caption
from captioning.captioner import Captioner
from captioning.serving.batching import DynamicBatcher, QueueFullError, Upload
from captioning.serving.schemas import (
    CaptionParams,
    CaptionsResponse,
    CommonParams,
    ErrorResponse,
    OverlayParams,
    describe_parameters,
)
from captioning.serving.uploads import Limits, read_uploads
from captioning.utils.errors import CaptioningError
from captioning.visualization import export, overlay

_STATIC = Path(__file__).parent / "static"
_ASSETS = Path(export.__file__).parent / "assets"
_FILES = {
    "/": (_STATIC / "index.html", "text/html"),
    "/index.js": (_STATIC / "index.js", "text/javascript"),
    "/index.css": (_STATIC / "index.css", "text/css"),
    "/viewer.js": (_ASSETS / "viewer.js", "text/javascript"),
    "/viewer.css": (_ASSETS / "viewer.css", "text/css"),
}
_EXAMPLES = ("chelsea.png", "rocket.jpg", "coffee.png", "astronaut.png", "camera.png")  # bundled with scikit-image
_MAX_CONCURRENT_BODIES = 16  # further bodies wait in the network buffers instead of in memory
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_BINARY = {"type": "string", "format": "binary"}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {"images": {"type": "array", "items": _BINARY}},
                }
            },
            "image/*": {"schema": _BINARY},
        },
    }
}
_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "an image cannot be read, or parameters are incompatible"},
    408: {"model": ErrorResponse, "description": "the request body did not arrive in time"},
    413: {"model": ErrorResponse, "description": "the request body is too large"},
    422: {"model": ErrorResponse, "description": "a parameter is unknown or out of range"},
    503: {"model": ErrorResponse, "description": "too many images are pending; retry after the seconds in Retry-After"},
}


def _render_page(name: str, caption: Caption) -> bytes:
    image = caption.open_image(export.MAX_PAGE_IMAGE_SIDE)
    return export.render_page(name, image, caption, overlay.colormap_stops("spotlight", overlay.DEFAULT_OPACITY))


def _render_panels(name: str, caption: Caption) -> bytes:
    return export.encode_png(caption.overlay())


_RENDERERS = {"html": _render_page, "png": _render_panels}
_MEDIA_TYPES = {"html": "text/html", "png": "image/png"}


class Service:
    """State that the routes share.

    Args:
        captioners: captioners by name; the first is the default of a request.
        limits: limits of a request.
        batcher: runs the models.
    """

    def __init__(self, captioners: Mapping[str, Captioner], limits: Limits, batcher: DynamicBatcher) -> None:
        self.captioners = captioners
        self.limits = limits
        self.batcher = batcher
        self._body_slots = asyncio.Semaphore(_MAX_CONCURRENT_BODIES)
        self._rendering = asyncio.Semaphore(1)  # captions have priority: overlays use at most one thread

    def resolve_captioner(self, params: CommonParams) -> tuple[str, Captioner]:
        """Return the name of the requested model and its captioner with the requested settings."""
        name = params.model or next(iter(self.captioners))
        if name not in self.captioners:
            raise CaptioningError(f"unknown model '{name[:80]}'; choose one of {', '.join(self.captioners)}")
        return name, self.captioners[name].with_options(**params.captioner_options())

    async def read_uploads(self, request: Request) -> list[Upload]:
        async with self._body_slots:
            return await read_uploads(request, self.limits)

    async def render_overlay(self, name: str, caption: Caption, file_format: str) -> bytes:
        async with self._rendering:
            return await asyncio.to_thread(_RENDERERS[file_format], name, caption)


def create_app(
    captioners: Mapping[str, Captioner],
    limits: Limits = Limits(),
    batcher: DynamicBatcher | None = None,
    host: str = "127.0.0.1",
) -> FastAPI:
    """Create the FastAPI application.

    Args:
        captioners: captioners by name; the first is the default of a request.
        limits: limits of a request.
        batcher: runs the models; by default with the pixel limit of ``limits``.
        host: address that the server binds to. On a loopback address, requests with another Host header are rejected,
            which prevents DNS rebinding.
    """
    service = Service(captioners, limits, batcher or DynamicBatcher(max_pixels=limits.max_pixels))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.batcher.close()

    app = FastAPI(
        title="captioning",
        description="Image captioning with an attention map for every word.",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # these pages load scripts from other hosts
        redoc_url=None,
    )
    app.add_middleware(_SecurityHeaders)
    if _is_loopback(host):
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]", host])
    _add_error_handlers(app)
    _add_files(app)
    _add_api(app, service)
    return app


class _SecurityHeaders:
    """Middleware that adds security headers: no foreign scripts, no embedding, no caching."""

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


def _add_error_handlers(app: FastAPI) -> None:
    """Return every error as JSON with one line of text as ``detail``."""

    @app.exception_handler(RequestValidationError)
    def on_validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        messages = [f"{item['loc'][-1]} {item['input']!r:.40}: {item['msg']}" for item in error.errors()]
        return JSONResponse({"detail": "; ".join(messages)}, 422)

    @app.exception_handler(CaptioningError)
    def on_captioning_error(request: Request, error: CaptioningError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 400)

    @app.exception_handler(QueueFullError)
    def on_queue_full(request: Request, error: QueueFullError) -> JSONResponse:
        detail = "too many images are pending; retry in a few seconds"
        return JSONResponse({"detail": detail}, 503, {"Retry-After": "2"})


def _add_files(app: FastAPI) -> None:
    """Add the page, and example images if scikit-image is installed."""
    for route, (path, media_type) in _FILES.items():
        response = Response(path.read_bytes(), media_type=media_type)
        app.add_api_route(route, lambda response=response: response, include_in_schema=False)
    examples = _find_examples()

    @app.get("/examples", include_in_schema=False)
    def list_examples() -> list[str]:
        return list(examples)

    @app.get("/examples/{name}", include_in_schema=False)
    def example(name: str) -> FileResponse:
        if name not in examples:
            raise HTTPException(404, f"no example image '{name[:80]}'; see /examples")
        return FileResponse(examples[name], headers={"Cache-Control": "max-age=86400"})


def _find_examples() -> dict[str, Path]:
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        return {}
    data_dir = Path(spec.origin).parent / "data"
    return {name: data_dir / name for name in _EXAMPLES if (data_dir / name).is_file()}


def _add_api(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    def health() -> dict[str, Any]:
        """Return the status of the server and the number of pending images."""
        return {"status": "ok", "version": __version__, "pending_images": service.batcher.num_pending}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        """Return the models with their default settings, the range of each setting, and the limits of a request."""
        described = [
            {
                "name": name,
                "attention": "hard" if captioner.decoder.is_hard else "soft",
                "attention_mode": captioner.attention_mode,
                "generation": dataclasses.asdict(captioner.generation),
            }
            for name, captioner in service.captioners.items()
        ]
        return {
            "models": described,
            "parameters": describe_parameters(),
            "limits": dataclasses.asdict(service.limits),
        }

    @app.post(
        "/v1/captions",
        responses={200: {"model": CaptionsResponse}, **_ERROR_RESPONSES},
        response_class=JSONResponse,
        openapi_extra=_BODY,
    )
    async def captions(request: Request, params: Annotated[CaptionParams, Query()]) -> JSONResponse:
        """Caption one image, sent as the request body, or several, sent as form field ``images``."""
        name, captioner = service.resolve_captioner(params)
        results = await service.batcher.caption(captioner, await service.read_uploads(request))
        return JSONResponse({"model": name, "captions": [result.to_dict(params.attention_maps) for result in results]})

    @app.post(
        "/v1/overlays",
        responses={200: {"content": {kind: {"schema": _BINARY} for kind in _MEDIA_TYPES.values()}}, **_ERROR_RESPONSES},
        response_class=Response,
        openapi_extra=_BODY,
    )
    async def overlays(request: Request, params: Annotated[OverlayParams, Query()]) -> Response:
        """Caption one image and return a file with its attention overlay."""
        _, captioner = service.resolve_captioner(params)
        uploads = await service.read_uploads(request)
        if len(uploads) > 1:
            raise CaptioningError(f"expected one image for an overlay, got {len(uploads)}; send one request per image")
        (caption,) = await service.batcher.caption(captioner, uploads)
        content = await service.render_overlay(uploads[0].name, caption, params.format)
        file = quote(f"{Path(uploads[0].name).stem}.{params.format}")
        disposition = {"Content-Disposition": f"attachment; filename*=utf-8''{file}"}
        return Response(content, media_type=_MEDIA_TYPES[params.format], headers=disposition)
