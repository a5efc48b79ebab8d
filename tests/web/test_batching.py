import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from captioning import Captioner
from captioning.captioner import Caption
from captioning.errors import CaptioningError
from captioning.web.batching import Batcher, BusyError, Upload


@pytest.fixture
def batcher() -> Iterator[Batcher]:
    batcher = Batcher(capacity=40, batch_size=8)
    yield batcher
    batcher.close()


class Slow:
    """Holds a captioner's first call until it is let go, so that others come to wait behind it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go, self.sizes = threading.Event(), threading.Event(), []
        caption = Captioner.caption

        def held(captioner: Captioner, pictures: list) -> list[Caption]:
            self.sizes.append(len(pictures))
            self.begun.set()
            assert self.go.wait(30)
            return caption(captioner, pictures)

        monkeypatch.setattr(Captioner, "caption", held)


def uploads(*pictures: bytes) -> list[Upload]:
    return [Upload(f"{number}.jpg", picture) for number, picture in enumerate(pictures)]


async def held_up(batcher: Batcher, slow: Slow, first: tuple, *others: tuple, waiting: int) -> list:
    """Answers (or errors) of requests that arrive while the first is under way."""
    tasks = [asyncio.create_task(batcher.caption(*first))]
    await asyncio.to_thread(slow.begun.wait, 30)
    tasks += [asyncio.create_task(batcher.caption(*other)) for other in others]
    async with asyncio.timeout(30):
        while len(batcher._waiting) < waiting:
            await asyncio.sleep(0.005)
    slow.go.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_what_waits_goes_together_and_each_gets_its_own(
    batcher: Batcher, captioner: Captioner, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = captioner(pictures[:8])
    assert len({caption.text for caption in expected}) > 1
    slow = Slow(monkeypatch)
    first, *others = ((captioner, uploads(picture)) for picture in pictures[:6])
    both = (captioner, uploads(*pictures[6:8]))
    answers = asyncio.run(held_up(batcher, slow, first, *others, both, waiting=6))
    assert slow.sizes == [1, 7]
    found = [caption for answer in answers for caption in answer]
    assert [caption.text for caption in found] == [caption.text for caption in expected]
    for caption, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(caption.maps, other.maps, atol=1e-5)
    assert batcher.under_way == 0


def test_no_batch_is_larger_than_it_may_be(
    batcher: Batcher, captioner: Captioner, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    requests = [(captioner, uploads(picture)) for picture in pictures]
    large = (captioner, uploads(*pictures[:12]))
    answers = asyncio.run(held_up(batcher, slow, *requests, large, waiting=20))
    assert slow.sizes == [1, 8, 8, 3, 12]
    assert [len(answer) for answer in answers] == [1] * 20 + [12]


def test_other_options_are_another_batch(
    batcher: Batcher,
    captioner: Captioner,
    hard_captioner: Captioner,
    pictures: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Slow(monkeypatch)
    kinds = [
        captioner,
        captioner.with_options(beam=3),
        captioner.with_options(beam=3, n_best=2),
        hard_captioner,
        hard_captioner.with_options(look="expect"),
        captioner.with_options(beam=3),
    ]
    requests = [(kind, uploads(pictures[0])) for kind in kinds]
    answers = asyncio.run(held_up(batcher, slow, *requests, waiting=5))
    assert sorted(slow.sizes) == [1, 1, 1, 1, 2]
    monkeypatch.undo()
    for kind, (caption,) in zip(kinds, answers, strict=True):
        alone = kind(pictures[0])
        assert caption.text == alone.text
        assert [other.text for other in caption.others] == [other.text for other in alone.others]
        np.testing.assert_allclose(caption.maps, alone.maps, atol=1e-5)


def test_chance_is_each_requests_own(
    batcher: Batcher,
    captioner: Captioner,
    hard_captioner: Captioner,
    pictures: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kinds() -> list[Captioner]:
        return [
            *(captioner.with_options(sample=True, seed=seed, n_best=3) for seed in (1, 1, 2)),
            *(hard_captioner.with_options(look="sample", seed=seed) for seed in (1, 1, 2)),
        ]

    slow = Slow(monkeypatch)
    requests = [(kind, uploads(*pictures[:2])) for kind in kinds()]
    answers = asyncio.run(held_up(batcher, slow, *requests, waiting=5))
    assert slow.sizes == [2] * 6
    monkeypatch.undo()
    for kind, answer in zip(kinds(), answers, strict=True):
        alone = kind(pictures[:2])
        assert [caption.text for caption in answer] == [caption.text for caption in alone]
        np.testing.assert_array_equal(
            np.concatenate([one.maps for one in answer]), np.concatenate([one.maps for one in alone])
        )


def test_a_bad_picture_fails_alone(
    batcher: Batcher, captioner: Captioner, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    good, other = (captioner, uploads(pictures[0])), (captioner, uploads(pictures[1]))
    bad = (captioner, uploads(pictures[0], b"text", pictures[1][:500]))
    answers = asyncio.run(held_up(batcher, slow, good, bad, other, waiting=1))
    assert isinstance(answers[1], CaptioningError)
    first, second = str(answers[1]).split("; 2.jpg: ")
    assert first.startswith("1.jpg: cannot be read as a picture (not a picture)")
    assert second.startswith("cannot be read as a picture")
    assert [len(answer) for answer in (answers[0], answers[2])] == [1, 1]


def test_more_than_is_kept_is_refused(
    batcher: Batcher, captioner: Captioner, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    first, second, third = ((captioner, uploads(*pictures[:count])) for count in (20, 19, 2))
    answers = asyncio.run(held_up(batcher, slow, first, second, third, waiting=1))
    assert [len(answer) for answer in answers[:2]] == [20, 19]
    assert isinstance(answers[2], BusyError)
    assert len(asyncio.run(batcher.caption(*third))) == 2  # there is room again


def test_whoever_waits_hears_of_a_failure_and_the_worker_goes_on(
    batcher: Batcher, captioner: Captioner, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(captioner: Captioner, pictures: list) -> list[Caption]:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as broken:
        broken.setattr(Captioner, "caption", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            asyncio.run(batcher.caption(captioner, uploads(pictures[0])))
    (caption,) = asyncio.run(batcher.caption(captioner, uploads(pictures[0])))
    assert caption.text == captioner(pictures[0]).text


def test_nobody_is_captioned_for_who_has_left(
    batcher: Batcher, captioner: Captioner, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)

    async def leave() -> list[Caption]:
        first = asyncio.create_task(batcher.caption(captioner, uploads(pictures[0])))
        await asyncio.to_thread(slow.begun.wait, 30)
        second = asyncio.create_task(batcher.caption(captioner, uploads(pictures[1])))
        while not batcher._waiting:
            await asyncio.sleep(0.005)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        slow.go.set()
        return await first

    assert len(asyncio.run(leave())) == 1
    batcher.close()
    assert slow.sizes == [1]
    assert batcher.under_way == 0
