"""Reading of uploaded images from a request body, within limits and without writing to disk."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator

from fastapi import HTTPException, Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from captioning.serving.batching import Upload
from captioning.utils.errors import CaptioningError

_FIELD = "images"
_DEFAULT_NAME = "image"
_DRAIN_FACTOR = 4  # a body of more than this many times the limit is not read to its end


@dataclasses.dataclass(frozen=True)
class UploadLimits:
    """Limits of a request.

    Args:
        max_request_mb: size of the body in megabytes, all images together.
        max_image_megapixels: size of an image in megapixels.
        max_images: number of images per request.
        timeout_seconds: time until the body has arrived.
    """

    max_request_mb: float = 20
    max_image_megapixels: float = 50
    max_images: int = 16
    timeout_seconds: float = 30

    def __post_init__(self) -> None:
        for name in ("max_request_mb", "max_image_megapixels"):
            if not 0 < getattr(self, name) <= 10_000:
                raise CaptioningError(f"{name} must be in (0, 10000], got {getattr(self, name):g}")

    @property
    def max_bytes(self) -> int:
        return int(self.max_request_mb * 1e6)

    @property
    def max_pixels(self) -> int:
        return int(self.max_image_megapixels * 1e6)


class _InMemoryMultiPartParser(MultiPartParser):
    spool_max_size = 0  # never spools to disk; the size of the body is limited already


async def read_uploads(request: Request, limits: UploadLimits) -> list[Upload]:
    """Return the images of a multipart form, or the whole body as one image. Invalid requests raise HTTP errors 4xx."""
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > _DRAIN_FACTOR * limits.max_bytes:
        raise _too_large(limits, int(declared) if declared.isdecimal() else None)
    chunks = _limit_stream(request.stream(), limits)
    content_type, _ = parse_options_header(request.headers.get("content-type"))
    try:
        async with asyncio.timeout(limits.timeout_seconds):
            if content_type == b"multipart/form-data":
                return await _read_form(request, chunks, limits)
            content = b"".join([chunk async for chunk in chunks])
    except TimeoutError:
        message = f"the request body did not arrive within {limits.timeout_seconds:g} seconds; send fewer images"
        raise HTTPException(408, message) from None
    if not content:
        raise HTTPException(400, f"no image; send one as the request body, or several as form field '{_FIELD}'")
    return [Upload(_DEFAULT_NAME, content)]


async def _limit_stream(stream: AsyncIterator[bytes], limits: UploadLimits) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a body. The rest of a body that is too large is discarded, since many clients read the
    response only after they have sent everything.
    """
    size = 0
    async for chunk in stream:
        size += len(chunk)
        if size <= limits.max_bytes:
            yield chunk
        elif size > _DRAIN_FACTOR * limits.max_bytes:
            break
    if size > limits.max_bytes:
        raise _too_large(limits, size)


def _too_large(limits: UploadLimits, size: int | None) -> HTTPException:
    got = "" if size is None else f", got {size / 1e6:.1f} MB"
    return HTTPException(
        413,
        f"the request body exceeds {limits.max_request_mb:g} MB{got}; downscale the images, send fewer, or restart the "
        "server with a larger --max-request-mb",
    )


async def _read_form(request: Request, chunks: AsyncGenerator[bytes, None], limits: UploadLimits) -> list[Upload]:
    max_images = limits.max_images
    parser = _InMemoryMultiPartParser(request.headers, chunks, max_files=max_images, max_fields=max_images)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise HTTPException(400, f"the form cannot be parsed: {error.message}") from None
    try:
        uploads = [await _read_field(field, value) for field, value in form.multi_items()]
    finally:
        await form.close()
    if not uploads:
        raise HTTPException(400, f"no image; send at least one file as form field '{_FIELD}'")
    return uploads


async def _read_field(field: str, value: UploadFile | str) -> Upload:
    if field != _FIELD:
        raise HTTPException(
            400, f"unknown form field '{field[:40]}'; send images as '{_FIELD}' and options as query parameters"
        )
    if not isinstance(value, UploadFile):
        raise HTTPException(400, f"form field '{_FIELD}' must be a file, as sent by 'curl --form {_FIELD}=@photo.jpg'")
    return Upload((value.filename or _DEFAULT_NAME)[:80], await value.read())
