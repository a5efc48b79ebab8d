"""Which pictures make a batch: every one once an epoch, those of like length together, each process its share."""

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler


class EpochOrder(Sampler[int]):
    """Every index once, in an order that follows from seed and epoch alone, so that a resumed run meets it again."""

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


class LikeLengthBatches(Sampler[list[int]]):
    """Batches of pictures whose captions are of like length; with several processes, each gets its share.

    Args:
        lengths: for each picture the lengths of its captions.
        batch_size: pictures in a batch.
        pool: like lengths are looked for among so many batches; 1 mixes all lengths.
        seed: of the order; None keeps the order of the records (for validation).
        rank: this process.
        processes: how many there are.
        copies: of each picture those that may be taken of it, one of them each time: copy c of a picture has its number
            plus c times their count. None for the pictures themselves.
    """

    def __init__(
        self,
        lengths: Sequence[tuple[int, ...]],
        batch_size: int,
        pool: int,
        seed: int | None,
        rank: int = 0,
        processes: int = 1,
        copies: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.pool = pool
        self.sampler = EpochOrder(len(lengths), seed)  # Lightning tells ``batch_sampler.sampler`` the epoch
        self.rank = rank
        self.processes = processes
        self.copies = copies
        self.skip = 0  # batches of the next epoch that were taken before the run was stopped

    def __len__(self) -> int:
        if self.sampler.seed is None:
            return -(-len(range(self.rank, len(self.lengths), self.processes)) // self.batch_size)
        # Processes that train must take the same number of steps: what is left over is skipped this epoch.
        return -(-len(self.lengths) // self.batch_size) // self.processes

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.sampler)
        if self.sampler.seed is None:
            return iter(self._cut(order[self.rank :: self.processes]))
        batches = self._cut(self._like_lengths_together(order))
        generator = torch.Generator().manual_seed(self.sampler.seed + self.sampler.epoch)
        batches = [batches[number] for number in torch.randperm(len(batches), generator=generator).tolist()]
        if self.copies is not None:
            chances = torch.rand(len(order), generator=generator).tolist()
            taken = [own[int(chance * len(own))] for own, chance in zip(self.copies, chances, strict=True)]
            batches = [[index + len(order) * taken[index] for index in batch] for batch in batches]
        first, self.skip = self.skip, 0
        return iter(batches[self.rank :: self.processes][first : len(self)])

    def _cut(self, order: list[int]) -> list[list[int]]:
        return [order[first : first + self.batch_size] for first in range(0, len(order), self.batch_size)]

    def _like_lengths_together(self, order: list[int]) -> list[int]:
        pool = self.pool * self.batch_size
        pools = (order[first : first + pool] for first in range(0, len(order), pool))
        return [index for part in pools for index in sorted(part, key=lambda index: self.lengths[index])]
