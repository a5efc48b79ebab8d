"""The body of a request, as pictures: within limits, and in memory only."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator

from fastapi import HTTPException, Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from captioning.errors import CaptioningError
from captioning.web.batching import Upload

_FIELD = "images"
_PATIENCE = 4  # a body of so many times what is allowed is not even read to its end


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a request may bring.

    Args:
        megabytes: of its body, all pictures together.
        megapixels: of a picture.
        pictures: in one request.
        seconds: that its body may take to arrive.
    """

    megabytes: float = 20
    megapixels: float = 50
    pictures: int = 16
    seconds: float = 30

    def __post_init__(self) -> None:
        for name in ("megabytes", "megapixels"):
            if not 0 < getattr(self, name) <= 10_000:
                raise CaptioningError(f"max-{name} {getattr(self, name):g}: take more than 0, and at most 10000")

    @property
    def bytes(self) -> int:
        return int(self.megabytes * 1e6)

    @property
    def pixels(self) -> int:
        return int(self.megapixels * 1e6)


class _InMemory(MultiPartParser):
    spool_max_size = 0  # never to disk: the body is bounded already


async def read_uploads(request: Request, limits: Limits) -> list[Upload]:
    """The pictures of a form, or the one that is the whole body; anything that is wrong with it is a 4xx."""
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > _PATIENCE * limits.bytes:
        raise _too_large(limits)
    chunks = _within(request.stream(), limits)
    content_type, _ = parse_options_header(request.headers.get("content-type"))
    try:
        async with asyncio.timeout(limits.seconds):
            if content_type == b"multipart/form-data":
                return await _from_form(request, chunks, limits)
            content = b"".join([chunk async for chunk in chunks])
    except TimeoutError:
        raise HTTPException(408, f"the pictures took longer than {limits.seconds:g} seconds to arrive") from None
    if not content:
        raise HTTPException(400, f"no picture: send one as the body, or several as '{_FIELD}' of a form")
    return [Upload("the picture", content)]


async def _within(stream: AsyncIterator[bytes], limits: Limits) -> AsyncGenerator[bytes, None]:
    """Chunks of a body. The rest of one that is too long is thrown away: a client that is cut short never hears why."""
    size = 0
    async for chunk in stream:
        size += len(chunk)
        if size <= limits.bytes:
            yield chunk
        elif size > _PATIENCE * limits.bytes:
            break
    if size > limits.bytes:
        raise _too_large(limits)


def _too_large(limits: Limits) -> HTTPException:
    return HTTPException(413, f"more than {limits.megabytes:g} MB were sent; scale the pictures down, or send fewer")


async def _from_form(request: Request, chunks: AsyncGenerator[bytes, None], limits: Limits) -> list[Upload]:
    parser = _InMemory(request.headers, chunks, max_files=limits.pictures, max_fields=limits.pictures)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise HTTPException(400, f"the form cannot be read: {error.message}") from None
    try:
        uploads = [await _from_field(field, value) for field, value in form.multi_items()]
    finally:
        await form.close()
    if not uploads:
        raise HTTPException(400, f"no picture: send at least one file as '{_FIELD}' of the form")
    return uploads


async def _from_field(field: str, value: UploadFile | str) -> Upload:
    if field != _FIELD:
        raise HTTPException(400, f"field '{field[:40]}': pictures are '{_FIELD}', and options go into the address")
    if not isinstance(value, UploadFile):
        raise HTTPException(400, f"field '{_FIELD}': must be a file, as 'curl --form {_FIELD}=@photo.jpg' sends it")
    return Upload((value.filename or "the picture")[:80], await value.read())
