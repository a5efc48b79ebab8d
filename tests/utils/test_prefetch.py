import threading
from collections.abc import Iterator

import pytest

from captioning.utils.prefetch import prefetch_batches


def test_batches_are_in_order() -> None:
    assert list(prefetch_batches(lambda item: 2 * item, range(5), 2)) == [[0, 2], [4, 6], [8]]
    assert list(prefetch_batches(lambda item: item, [], 2)) == []


def test_the_next_batch_is_prepared_while_the_current_one_is_processed() -> None:
    called = [threading.Event() for _ in range(6)]
    batches = prefetch_batches(lambda item: called[item].set(), range(6), 2)
    next(batches)
    assert called[3].wait(timeout=5)
    assert not called[4].is_set()  # at most one batch ahead
    batches.close()


def test_errors_of_the_items_and_of_the_function_are_raised() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("unreadable")

    with pytest.raises(OSError, match="unreadable"):
        list(prefetch_batches(lambda item: item, items(), 1))
    with pytest.raises(ZeroDivisionError):
        list(prefetch_batches(lambda item: 1 // item, [0], 1))
