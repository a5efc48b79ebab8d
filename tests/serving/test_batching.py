import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from captioning import Captioner
from captioning.caption import Caption
from captioning.serving.batching import DynamicBatcher, QueueFullError, Upload
from captioning.utils.errors import CaptioningError


@pytest.fixture
def batcher() -> Iterator[DynamicBatcher]:
    batcher = DynamicBatcher(capacity=40, batch_size=8)
    yield batcher
    batcher.close()


class BlockedCaptioner:
    """Blocks all calls of caption_batch until released, so that further requests queue up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started, self.release, self.batch_sizes = threading.Event(), threading.Event(), []
        caption_batch = Captioner.caption_batch

        def blocked_call(captioner: Captioner, images: list) -> list[Caption]:
            self.batch_sizes.append(len(images))
            self.started.set()
            assert self.release.wait(30)
            return caption_batch(captioner, images)

        monkeypatch.setattr(Captioner, "caption_batch", blocked_call)


def uploads(*images: bytes) -> list[Upload]:
    return [Upload(f"{index}.jpg", image) for index, image in enumerate(images)]


async def run_queued(
    batcher: DynamicBatcher, blocked: BlockedCaptioner, first: tuple, *others: tuple, num_queued: int
) -> list:
    """Results (or errors) of requests that arrive while the first one is processed."""
    tasks = [asyncio.create_task(batcher.caption(*first))]
    await asyncio.to_thread(blocked.started.wait, 30)
    tasks += [asyncio.create_task(batcher.caption(*other)) for other in others]
    async with asyncio.timeout(30):
        while len(batcher._queue) < num_queued:
            await asyncio.sleep(0.005)
    blocked.release.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_queued_requests_share_a_batch(
    batcher: DynamicBatcher, captioner: Captioner, images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = captioner(images[:8])
    assert len({caption.text for caption in expected}) > 1
    blocked = BlockedCaptioner(monkeypatch)
    first, *others = ((captioner, uploads(image)) for image in images[:6])
    two_images = (captioner, uploads(*images[6:8]))
    results = asyncio.run(run_queued(batcher, blocked, first, *others, two_images, num_queued=6))
    assert blocked.batch_sizes == [1, 7]
    captions = [caption for result in results for caption in result]
    assert [caption.text for caption in captions] == [caption.text for caption in expected]
    for caption, alone in zip(captions, expected, strict=True):
        np.testing.assert_allclose(caption.attention_maps, alone.attention_maps, atol=1e-5)
    assert batcher.num_pending == 0


def test_batch_size_is_limited(
    batcher: DynamicBatcher, captioner: Captioner, images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = BlockedCaptioner(monkeypatch)
    requests = [(captioner, uploads(image)) for image in images]
    large_request = (captioner, uploads(*images[:12]))
    results = asyncio.run(run_queued(batcher, blocked, *requests, large_request, num_queued=20))
    assert blocked.batch_sizes == [1, 8, 8, 3, 12]
    assert [len(result) for result in results] == [1] * 20 + [12]


def test_different_settings_use_separate_batches(
    batcher: DynamicBatcher,
    captioner: Captioner,
    hard_captioner: Captioner,
    images: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocked = BlockedCaptioner(monkeypatch)
    variants = [
        captioner,
        captioner.with_options(num_beams=3),
        captioner.with_options(num_beams=3, num_return_sequences=2),
        hard_captioner,
        hard_captioner.with_options(attention_mode="expectation"),
        captioner.with_options(num_beams=3),
    ]
    requests = [(variant, uploads(images[0])) for variant in variants]
    results = asyncio.run(run_queued(batcher, blocked, *requests, num_queued=5))
    assert sorted(blocked.batch_sizes) == [1, 1, 1, 1, 2]
    monkeypatch.undo()
    for variant, (caption,) in zip(variants, results, strict=True):
        alone = variant(images[0])
        assert caption.text == alone.text
        assert [item.text for item in caption.alternatives] == [item.text for item in alone.alternatives]
        np.testing.assert_allclose(caption.attention_maps, alone.attention_maps, atol=1e-5)


def test_stochastic_requests_are_reproducible(
    batcher: DynamicBatcher,
    captioner: Captioner,
    hard_captioner: Captioner,
    images: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make_variants() -> list[Captioner]:
        return [
            *(captioner.with_options(do_sample=True, seed=seed, num_return_sequences=3) for seed in (1, 1, 2)),
            *(hard_captioner.with_options(attention_mode="sample", seed=seed) for seed in (1, 1, 2)),
        ]

    blocked = BlockedCaptioner(monkeypatch)
    requests = [(variant, uploads(*images[:2])) for variant in make_variants()]
    results = asyncio.run(run_queued(batcher, blocked, *requests, num_queued=5))
    assert blocked.batch_sizes == [2] * 6
    monkeypatch.undo()
    for variant, result in zip(make_variants(), results, strict=True):
        alone = variant(images[:2])
        assert [caption.text for caption in result] == [caption.text for caption in alone]
        np.testing.assert_array_equal(
            np.concatenate([caption.attention_maps for caption in result]),
            np.concatenate([caption.attention_maps for caption in alone]),
        )


def test_invalid_image_fails_alone(
    batcher: DynamicBatcher, captioner: Captioner, images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = BlockedCaptioner(monkeypatch)
    first_valid, second_valid = (captioner, uploads(images[0])), (captioner, uploads(images[1]))
    invalid = (captioner, uploads(images[0], b"text", images[1][:500]))
    results = asyncio.run(run_queued(batcher, blocked, first_valid, invalid, second_valid, num_queued=2))
    monkeypatch.undo()
    caption, *errors = results[1]
    assert caption.text == captioner(images[0]).text
    assert all(isinstance(error, CaptioningError) for error in errors)
    assert str(errors[0]).startswith("1.jpg: cannot be read as an image (not an image")
    assert str(errors[1]).startswith("2.jpg: cannot be read as an image")
    assert [len(result) for result in (results[0], results[2])] == [1, 1]


def test_requests_beyond_the_capacity_are_rejected(
    batcher: DynamicBatcher, captioner: Captioner, images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = BlockedCaptioner(monkeypatch)
    first, second, third = ((captioner, uploads(*images[:count])) for count in (20, 19, 2))
    results = asyncio.run(run_queued(batcher, blocked, first, second, third, num_queued=1))
    assert [len(result) for result in results[:2]] == [20, 19]
    assert isinstance(results[2], QueueFullError)
    assert len(asyncio.run(batcher.caption(*third))) == 2  # the queue is empty again


def test_model_failure_reaches_the_request_and_the_worker_continues(
    batcher: DynamicBatcher, captioner: Captioner, images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(captioner: Captioner, images: list) -> list[Caption]:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as broken:
        broken.setattr(Captioner, "caption_batch", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            asyncio.run(batcher.caption(captioner, uploads(images[0])))
    (caption,) = asyncio.run(batcher.caption(captioner, uploads(images[0])))
    assert caption.text == captioner(images[0]).text


def test_cancelled_request_is_not_processed(
    batcher: DynamicBatcher, captioner: Captioner, images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = BlockedCaptioner(monkeypatch)

    async def cancel_second() -> list[Caption]:
        first = asyncio.create_task(batcher.caption(captioner, uploads(images[0])))
        await asyncio.to_thread(blocked.started.wait, 30)
        second = asyncio.create_task(batcher.caption(captioner, uploads(images[1])))
        while not batcher._queue:
            await asyncio.sleep(0.005)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        blocked.release.set()
        return await first

    assert len(asyncio.run(cancel_second())) == 1
    batcher.close()
    assert blocked.batch_sizes == [1]
    assert batcher.num_pending == 0
