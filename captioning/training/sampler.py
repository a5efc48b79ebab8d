"""Batch sampling: shuffles one or several datasets, groups captions by length, and divides batches among processes.

Random choices depend only on the seed and the epoch, so that a resumed run repeats them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch.utils.data import Sampler


class SampleKey(NamedTuple):
    """An image of a dataset in one of its views, with all or some of its captions.

    Args:
        image_index: index of the image.
        view: index of the view; 0 is the image itself, others are flipped or cropped.
        captions: indices of the captions, in ascending order; None for all.
    """

    image_index: int
    view: int = 0
    captions: tuple[int, ...] | None = None


class EpochShuffleSampler(Sampler[int]):
    """Indices of the images of an epoch in random order.

    Args:
        groups: number of images and weight of each dataset, whose images follow each other. A weight of 2 repeats
            every image, a weight of 0.5 draws half of the images in each epoch.
        seed: random seed; None for every image once, in order.
    """

    def __init__(self, groups: Sequence[tuple[int, float]], seed: int | None) -> None:
        self.groups = groups
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(size if self.seed is None else round(size * weight) for size, weight in self.groups)

    def __iter__(self) -> Iterator[int]:
        if self.seed is None:
            return iter(range(len(self)))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        images: list[int] = []
        start = 0
        for size, weight in self.groups:
            copies, num_drawn = divmod(round(size * weight), size) if size else (0, 0)
            images += list(range(start, start + size)) * copies
            if num_drawn:
                images += (start + torch.randperm(size, generator=generator)[:num_drawn]).tolist()
            start += size
        return iter([images[index] for index in torch.randperm(len(images), generator=generator).tolist()])


class LengthGroupedBatchSampler(Sampler[list[SampleKey]]):
    """Batches of images whose captions have similar lengths, divided among processes.

    Args:
        lengths: caption lengths of each image, longest first.
        batch_size: images per batch.
        bucket_batches: images are sorted by length within this number of batches; 1 disables the grouping.
        seed: random seed of the order; None keeps the order of the records (validation).
        rank: rank of this process.
        num_replicas: number of processes.
        views: allowed views of each image, of which one is drawn each time; None for view 0.
        groups: number of images and weight of each dataset, see EpochShuffleSampler; None for a single one.
        captions_per_image: maximum number of captions that are drawn each time; None for all.
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
        groups: Sequence[tuple[int, float]] | None = None,
        captions_per_image: int | None = None,
    ) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.bucket_batches = bucket_batches
        # Lightning calls ``batch_sampler.sampler.set_epoch``.
        self.sampler = EpochShuffleSampler(groups or [(len(lengths), 1.0)], seed)
        self.rank = rank
        self.num_replicas = num_replicas
        self.views = views
        self.captions_per_image = captions_per_image
        self.start_batch = 0  # batches of the next epoch that were processed before the run was stopped

    def __len__(self) -> int:
        if self.sampler.seed is None:
            return -(-len(range(self.rank, len(self.sampler), self.num_replicas)) // self.batch_size)
        # All processes must take the same number of steps: the remainder is skipped in this epoch.
        return -(-len(self.sampler) // self.batch_size) // self.num_replicas

    def __iter__(self) -> Iterator[list[SampleKey]]:
        order = list(self.sampler)
        if self.sampler.seed is None:
            keys = [SampleKey(index) for index in order[self.rank :: self.num_replicas]]
            return iter(self._split_batches(keys))
        generator = torch.Generator().manual_seed(self.sampler.seed + self.sampler.epoch)
        batches = self._split_batches(self._group_by_length(self._draw_keys(order, generator)))
        batches = [batches[number] for number in torch.randperm(len(batches), generator=generator).tolist()]
        first, self.start_batch = self.start_batch, 0
        return iter(batches[self.rank :: self.num_replicas][first : len(self)])

    def _draw_keys(self, order: list[int], generator: torch.Generator) -> list[SampleKey]:
        """Draw a view and captions each time that an image is used."""
        keys = []
        for index, draw in zip(order, torch.rand(len(order), generator=generator).tolist(), strict=True):
            allowed = [0] if self.views is None else self.views[index]
            view = allowed[int(draw * len(allowed))]
            keys.append(SampleKey(index, view, self._draw_captions(index, generator)))
        return keys

    def _draw_captions(self, index: int, generator: torch.Generator) -> tuple[int, ...] | None:
        num_captions = len(self.lengths[index])
        if self.captions_per_image is None or num_captions <= self.captions_per_image:
            return None
        drawn = torch.randperm(num_captions, generator=generator)[: self.captions_per_image]
        return tuple(sorted(drawn.tolist()))

    def _split_batches(self, keys: list[SampleKey]) -> list[list[SampleKey]]:
        return [keys[start : start + self.batch_size] for start in range(0, len(keys), self.batch_size)]

    def _group_by_length(self, keys: list[SampleKey]) -> list[SampleKey]:
        def lengths(key: SampleKey) -> tuple[int, ...]:
            caption_lengths = self.lengths[key.image_index]
            if key.captions is None:
                return caption_lengths
            return tuple(caption_lengths[caption] for caption in key.captions)

        size = self.bucket_batches * self.batch_size
        return [key for start in range(0, len(keys), size) for key in sorted(keys[start : start + size], key=lengths)]
