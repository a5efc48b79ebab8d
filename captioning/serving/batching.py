"""Dynamic batching: requests that wait at the same time go through the model as one batch.

A small pool of threads decodes images, and one worker thread runs the model. Whenever the worker is free, it takes all
waiting requests with equal settings. It never waits for more requests, so a single image has no extra latency.
"""

import asyncio
import threading
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

from captioning.caption import Caption
from captioning.captioner import Captioner
from captioning.preprocessing.preprocessed_image import PreprocessedImage
from captioning.utils.errors import CaptioningError

_FLAG = "--max-image-megapixels"


class QueueFullError(Exception):
    """The number of pending images exceeds the capacity."""


class Upload(NamedTuple):
    """The content of an uploaded file, and its name for error messages."""

    name: str
    content: bytes


def rename_error(error: CaptioningError, name: str) -> CaptioningError:
    """Name the uploaded file in an error about bytes, which the message calls "image"."""
    message = str(error).removeprefix("image: ")
    return CaptioningError(f"{name}: {message.replace('raise the limit', 'restart the server with a larger ' + _FLAG)}")


class _Request(NamedTuple):
    captioner: Captioner
    images: list[PreprocessedImage]
    future: Future[list[Caption]]

    @property
    def batch_key(self) -> Hashable:
        """Requests with equal keys may share a batch. A stochastic request never does, so its seed is reproducible."""
        captioner = self.captioner
        if captioner.is_stochastic:
            return id(self.future)
        return id(captioner.decoder), captioner.generation, captioner.attention_mode, captioner.num_return_sequences


class DynamicBatcher:
    """Captions the images of concurrent requests in batches on one worker thread.

    Args:
        capacity: maximum number of pending images; further requests raise :class:`QueueFullError`.
        batch_size: maximum number of images per batch, unless a single request has more.
        max_pixels: maximum number of pixels of an image.
        num_decode_threads: number of threads that decode images.
    """

    def __init__(
        self, capacity: int = 128, batch_size: int = 32, max_pixels: float = float("inf"), num_decode_threads: int = 2
    ) -> None:
        self.capacity = capacity
        self.batch_size = batch_size
        self.max_pixels = max_pixels
        self.num_batches = 0  # number of calls of the model
        self.num_pending = 0  # number of images; only the thread of the event loop changes it
        self._queue: list[_Request] = []
        self._lock = threading.Lock()
        self._decoders = ThreadPoolExecutor(num_decode_threads, "decode")
        self._worker = ThreadPoolExecutor(1, "captioner")

    async def caption(self, captioner: Captioner, uploads: Sequence[Upload]) -> list[Caption | CaptioningError]:
        """Return one caption per upload, or the error of an image that cannot be read."""
        if self.num_pending + len(uploads) > self.capacity:
            raise QueueFullError
        self.num_pending += len(uploads)
        try:
            loop = asyncio.get_running_loop()
            tasks = [loop.run_in_executor(self._decoders, self._preprocess, captioner, upload) for upload in uploads]
            results = await asyncio.gather(*tasks)
            images = [result for result in results if isinstance(result, PreprocessedImage)]
            captions: Iterator[Caption] = iter(())
            if images:
                batch = await asyncio.wrap_future(self._enqueue(captioner, images))
                captions = iter(batch)
            return [next(captions) if isinstance(result, PreprocessedImage) else result for result in results]
        finally:
            self.num_pending -= len(uploads)

    def _preprocess(self, captioner: Captioner, upload: Upload) -> PreprocessedImage | CaptioningError:
        try:
            return captioner.preprocess(upload.content, self.max_pixels)
        except CaptioningError as error:
            return rename_error(error, upload.name)

    def _enqueue(self, captioner: Captioner, images: list[PreprocessedImage]) -> Future[list[Caption]]:
        request = _Request(captioner, images, Future())
        with self._lock:
            self._queue.append(request)
        # One call per request: each call processes at least one request, and returns at once if none is left.
        self._worker.submit(self._process_batch)
        return request.future

    def _process_batch(self) -> None:
        requests = [request for request in self._next_batch() if request.future.set_running_or_notify_cancel()]
        if not requests:
            return
        self.num_batches += 1
        try:
            images = [image for request in requests for image in request.images]
            captions = iter(requests[0].captioner.caption_batch(images))
            for request in requests:
                request.future.set_result(list(islice(captions, len(request.images))))
        except Exception as error:  # any error must reach the waiting requests, and the worker must continue
            for request in requests:
                request.future.set_exception(error)

    def _next_batch(self) -> list[_Request]:
        """Remove the oldest request from the queue, and all others with its key that fit into the batch."""
        with self._lock:
            batch: list[_Request] = []
            remaining: list[_Request] = []
            num_free = self.batch_size
            for request in self._queue:
                fits = not batch or (request.batch_key == batch[0].batch_key and len(request.images) <= num_free)
                (batch if fits else remaining).append(request)
                num_free -= len(request.images) if fits else 0
            self._queue = remaining
        return batch

    def close(self) -> None:
        """Stop the threads after the current task and drop all tasks that have not started."""
        self._decoders.shutdown(cancel_futures=True)
        self._worker.shutdown(cancel_futures=True)
