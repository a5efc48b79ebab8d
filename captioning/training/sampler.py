"""Batch sampling: every image once per epoch, captions of similar length together, a part for each process."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch.utils.data import Sampler


class SampleKey(NamedTuple):
    """An image of a data set in one of its views (0 is the image itself; others are flipped or cropped)."""

    image_index: int
    view: int = 0


class EpochShuffleSampler(Sampler[int]):
    """Every index once, in an order that depends on seed and epoch only, so that a resumed run repeats it."""

    def __init__(self, size: int, seed: int | None) -> None:
        self.size = size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        if self.seed is None:
            return iter(range(self.size))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.size, generator=generator).tolist())


class LengthGroupedBatchSampler(Sampler[list[SampleKey]]):
    """Batches of images whose captions have similar lengths, divided among processes.

    Args:
        lengths: caption lengths of each image.
        batch_size: images per batch.
        bucket_batches: images are sorted by length within this number of batches; 1 disables the grouping.
        seed: random seed of the order; None keeps the order of the records (validation).
        rank: rank of this process.
        num_replicas: number of processes.
        views: allowed views of each image, of which one is drawn each time; None for view 0.
    """

    def __init__(
        self,
        lengths: Sequence[tuple[int, ...]],
        batch_size: int,
        bucket_batches: int,
        seed: int | None,
        rank: int = 0,
        num_replicas: int = 1,
        views: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.bucket_batches = bucket_batches
        self.sampler = EpochShuffleSampler(len(lengths), seed)  # Lightning calls ``batch_sampler.sampler.set_epoch``
        self.rank = rank
        self.num_replicas = num_replicas
        self.views = views
        self.start_batch = 0  # batches of the next epoch that were processed before the run was stopped

    def __len__(self) -> int:
        if self.sampler.seed is None:
            return -(-len(range(self.rank, len(self.lengths), self.num_replicas)) // self.batch_size)
        # All processes must take the same number of steps: the remainder is skipped in this epoch.
        return -(-len(self.lengths) // self.batch_size) // self.num_replicas

    def __iter__(self) -> Iterator[list[SampleKey]]:
        order = list(self.sampler)
        if self.sampler.seed is None:
            batches = self._split_batches(order[self.rank :: self.num_replicas])
            return iter([[SampleKey(index) for index in batch] for batch in batches])
        batches = self._split_batches(self._group_by_length(order))
        generator = torch.Generator().manual_seed(self.sampler.seed + self.sampler.epoch)
        batches = [batches[number] for number in torch.randperm(len(batches), generator=generator).tolist()]
        views = self._draw_views(len(order), generator)
        keys = [[SampleKey(index, views[index]) for index in batch] for batch in batches]
        first, self.start_batch = self.start_batch, 0
        return iter(keys[self.rank :: self.num_replicas][first : len(self)])

    def _draw_views(self, num_images: int, generator: torch.Generator) -> list[int]:
        if self.views is None:
            return [0] * num_images
        draws = torch.rand(num_images, generator=generator).tolist()
        return [allowed[int(draw * len(allowed))] for allowed, draw in zip(self.views, draws, strict=True)]

    def _split_batches(self, order: list[int]) -> list[list[int]]:
        return [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]

    def _group_by_length(self, order: list[int]) -> list[int]:
        size = self.bucket_batches * self.batch_size
        buckets = (order[start : start + size] for start in range(0, len(order), size))
        return [index for bucket in buckets for index in sorted(bucket, key=lambda index: self.lengths[index])]
