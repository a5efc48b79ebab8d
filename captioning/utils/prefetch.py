"""Batches that a thread prepares while the previous batch is processed."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetch_batches(
    function: Callable[[Item], Result], items: Iterable[Item], batch_size: int
) -> Iterator[list[Result]]:
    """Yield ``function(item)`` of all items in order, in lists of ``batch_size``.

    One thread reads the items and calls the function, at most one batch ahead of the caller. One thread suffices,
    since the CNN takes longer than decoding. Exceptions in the thread are raised in the caller.
    """
    iterator = iter(items)

    def load() -> list[Result]:
        return [function(item) for item in islice(iterator, batch_size)]

    with ThreadPoolExecutor(1, "prefetch") as thread:
        pending = thread.submit(load)
        while batch := pending.result():
            pending = thread.submit(load)
            yield batch
