"""Requests that arrive together go through the model together.

A small pool of threads opens pictures; one worker thread has the model. Whenever it is free it takes all that is
waiting to be captioned in the same way. Nobody waits for company: a picture that comes alone is captioned at once.
"""

import asyncio
import threading
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

from captioning.captioner import Caption, Captioner, Prepared
from captioning.errors import CaptioningError


class BusyError(Exception):
    """More is waiting than will be kept in memory."""


class Upload(NamedTuple):
    """What was sent as a picture, and what to call it when it is none."""

    name: str
    content: bytes


class _Request(NamedTuple):
    captioner: Captioner
    pictures: list[Prepared]
    answer: Future[list[Caption]]

    @property
    def kind(self) -> Hashable:
        """Requests of the same kind can be answered together; one that leaves anything to chance has its own chance."""
        captioner = self.captioner
        if captioner.by_chance:
            return id(self.answer)
        return id(captioner.decoder), captioner.search, captioner.look, captioner.n_best


class Batcher:
    """Captions the pictures of many requests on one thread, as many at a time as there are.

    Args:
        capacity: pictures that may be waiting or under way; what comes beyond is refused as :class:`BusyError`.
        batch_size: most pictures that go through the model at a time, unless a single request has more.
        most_pixels: of a picture; one with more is refused.
        openers: threads that open pictures.
    """

    def __init__(
        self, capacity: int = 128, batch_size: int = 32, most_pixels: float = float("inf"), openers: int = 2
    ) -> None:
        self.capacity = capacity
        self.batch_size = batch_size
        self.most_pixels = most_pixels
        self.batches = 0  # how often the model was called
        self.under_way = 0  # pictures; only the event loop's thread counts them
        self._waiting: list[_Request] = []
        self._lock = threading.Lock()
        self._openers = ThreadPoolExecutor(openers, "opener")
        self._worker = ThreadPoolExecutor(1, "captioner")

    async def caption(self, captioner: Captioner, uploads: Sequence[Upload]) -> list[Caption]:
        """The captions of a request's pictures, or a CaptioningError that names each that cannot be read."""
        if self.under_way + len(uploads) > self.capacity:
            raise BusyError
        self.under_way += len(uploads)
        try:
            loop = asyncio.get_running_loop()
            opening = [loop.run_in_executor(self._openers, self._open, captioner, upload) for upload in uploads]
            opened = await asyncio.gather(*opening)
            errors = [str(one) for one in opened if isinstance(one, CaptioningError)]
            if errors:
                raise CaptioningError("; ".join(errors))
            pictures = [one for one in opened if isinstance(one, Prepared)]
            return await asyncio.wrap_future(self._enqueue(captioner, pictures))
        finally:
            self.under_way -= len(uploads)

    def _open(self, captioner: Captioner, upload: Upload) -> Prepared | CaptioningError:
        try:
            return captioner.prepare(upload.content, self.most_pixels)
        except CaptioningError as error:
            return CaptioningError(f"{upload.name}: {str(error).removeprefix('the picture: ')}")

    def _enqueue(self, captioner: Captioner, pictures: list[Prepared]) -> Future[list[Caption]]:
        request = _Request(captioner, pictures, Future())
        with self._lock:
            self._waiting.append(request)
        # As many calls as requests: each takes at least one, and those that find nothing left do nothing.
        self._worker.submit(self._answer_waiting)
        return request.answer

    def _answer_waiting(self) -> None:
        requests = [request for request in self._take() if request.answer.set_running_or_notify_cancel()]
        if not requests:
            return
        self.batches += 1
        try:
            pictures = [picture for request in requests for picture in request.pictures]
            captions = iter(requests[0].captioner.caption(pictures))
            for request in requests:
                request.answer.set_result(list(islice(captions, len(request.pictures))))
        except Exception as error:  # whatever it is, whoever waits must hear of it, and the worker goes on
            for request in requests:
                request.answer.set_exception(error)

    def _take(self) -> list[_Request]:
        """The request that has waited longest, and others of its kind as far as there is room."""
        with self._lock:
            taken: list[_Request] = []
            left: list[_Request] = []
            room = self.batch_size
            for request in self._waiting:
                fits = not taken or (request.kind == taken[0].kind and len(request.pictures) <= room)
                (taken if fits else left).append(request)
                room -= len(request.pictures) if fits else 0
            self._waiting = left
        return taken

    def close(self) -> None:
        """Let the threads end; what has not begun is dropped."""
        self._openers.shutdown(cancel_futures=True)
        self._worker.shutdown(cancel_futures=True)
