"""Web page and REST API: stateless, without writing to disk and without requests to other hosts."""

import asyncio
import dataclasses
import ipaddress
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

from captioning import __version__
from captioning.caption import Caption
from captioning.captioner import Captioner
from captioning.generation.config import SAMPLING_DEFAULTS
from captioning.preprocessing.image import open_image
from captioning.serving.batching import DynamicBatcher, QueueFullError, Upload, rename_error
from captioning.serving.middleware import RequestLog, SecurityHeaders
from captioning.serving.pages import add_pages
from captioning.serving.schemas import (
    CaptionParams,
    CaptionsResponse,
    CommonParams,
    ErrorResponse,
    OverlayParams,
    check_effective,
    describe_parameters,
)
from captioning.serving.uploads import UploadLimits, read_uploads
from captioning.utils.errors import CaptioningError
from captioning.visualization import export
from captioning.visualization.encoding import encode_jpeg, encode_png

_MAX_CONCURRENT_BODIES = 16  # further bodies wait in the network buffers instead of in memory
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
    return export.render_page(name, caption.open_image(export.MAX_PAGE_IMAGE_SIDE), caption)


def _render_panels(name: str, caption: Caption) -> bytes:
    return encode_png(caption.overlay())


def _render_preview(upload: Upload, max_pixels: int) -> bytes:
    try:
        image = open_image(upload.content, export.MAX_PAGE_IMAGE_SIDE, max_pixels)
    except CaptioningError as error:
        raise rename_error(error, upload.name) from None
    return encode_jpeg(image, export.MAX_PAGE_IMAGE_SIDE)


_RENDERERS = {"html": _render_page, "png": _render_panels}
_MEDIA_TYPES = {"html": "text/html", "png": "image/png"}


class Service:
    """State that the routes share.

    Args:
        captioners: captioners by name; the first is the default of a request.
        limits: limits of a request.
        batcher: runs the models.
    """

    def __init__(self, captioners: Mapping[str, Captioner], limits: UploadLimits, batcher: DynamicBatcher) -> None:
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
        captioner = self.captioners[name].with_options(**params.captioner_options())
        check_effective(params, captioner)
        return name, captioner

    async def read_uploads(self, request: Request) -> list[Upload]:
        async with self._body_slots:
            return await read_uploads(request, self.limits)

    async def render_preview(self, upload: Upload) -> bytes:
        """Return the image as JPEG, as the model receives it: upright, in sRGB, the first frame of an animation."""
        async with self._rendering:
            return await asyncio.to_thread(_render_preview, upload, self.limits.max_pixels)

    async def render_overlay(self, name: str, caption: Caption, file_format: str) -> bytes:
        async with self._rendering:
            return await asyncio.to_thread(_RENDERERS[file_format], name, caption)


def create_app(
    captioners: Mapping[str, Captioner],
    limits: UploadLimits = UploadLimits(),
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
        docs_url=None,  # FastAPI's pages load scripts from other hosts
        redoc_url=None,
    )
    app.add_middleware(SecurityHeaders)
    if _is_loopback(host):
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]", host])
    app.add_middleware(RequestLog)
    _add_error_handlers(app)
    add_pages(app)
    _add_api(app, service)
    return app


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
            "sampling_defaults": SAMPLING_DEFAULTS,
            "limits": dataclasses.asdict(service.limits),
        }

    @app.post(
        "/v1/captions",
        responses={200: {"model": CaptionsResponse}, **_ERROR_RESPONSES},
        response_class=JSONResponse,
        openapi_extra=_BODY,
    )
    async def captions(request: Request, params: Annotated[CaptionParams, Query()]) -> JSONResponse:
        """Caption one image, sent as the request body, or several, sent as form field ``images``.

        An image that cannot be read has an ``error`` in the response instead of a caption. The request fails only if
        no image can be read.
        """
        name, captioner = service.resolve_captioner(params)
        uploads = await service.read_uploads(request)
        start = time.perf_counter()
        results = await service.batcher.caption(captioner, uploads)
        errors = [str(result) for result in results if isinstance(result, CaptioningError)]
        if len(errors) == len(uploads):
            raise CaptioningError("; ".join(errors))
        seconds = round(time.perf_counter() - start, 4)
        captions = [
            {"error": str(result)} if isinstance(result, CaptioningError) else result.to_dict(params.attention_maps)
            for result in results
        ]
        return JSONResponse({"model": name, "seconds": seconds, "captions": captions})

    @app.post(
        "/v1/previews",
        responses={200: {"content": {"image/jpeg": {"schema": _BINARY}}}, **_ERROR_RESPONSES},
        response_class=Response,
        openapi_extra=_BODY,
    )
    async def previews(request: Request) -> Response:
        """Return an image as JPEG of at most 1200 pixels per side, for formats that a browser does not display."""
        upload = _single(await service.read_uploads(request), "a preview")
        return Response(await service.render_preview(upload), media_type="image/jpeg")

    @app.post(
        "/v1/overlays",
        responses={200: {"content": {kind: {"schema": _BINARY} for kind in _MEDIA_TYPES.values()}}, **_ERROR_RESPONSES},
        response_class=Response,
        openapi_extra=_BODY,
    )
    async def overlays(request: Request, params: Annotated[OverlayParams, Query()]) -> Response:
        """Caption one image and return a file with its attention overlay."""
        _, captioner = service.resolve_captioner(params)
        upload = _single(await service.read_uploads(request), "an overlay")
        (result,) = await service.batcher.caption(captioner, [upload])
        if isinstance(result, CaptioningError):
            raise result
        content = await service.render_overlay(upload.name, result, params.format)
        file = quote(f"{Path(upload.name).stem}.{params.format}")
        disposition = {"Content-Disposition": f"attachment; filename*=utf-8''{file}"}
        return Response(content, media_type=_MEDIA_TYPES[params.format], headers=disposition)


def _single(uploads: list[Upload], purpose: str) -> Upload:
    if len(uploads) > 1:
        raise CaptioningError(f"expected one image for {purpose}, got {len(uploads)}; send one request per image")
    return uploads[0]
