import torch

from captioning.training.batches import EpochOrder, LikeLengthBatches


def test_every_picture_once_an_epoch_and_lengths_alike() -> None:
    lengths = [tuple(sorted((value, value - 1), reverse=True)) for value in torch.randint(5, 25, (640,)).tolist()]
    batches = LikeLengthBatches(lengths, batch_size=16, pool=50, seed=1)
    taken = list(batches)
    assert sorted(index for batch in taken for index in batch) == list(range(640))
    assert len(taken) == len(batches) == 40
    spread = [max(lengths[index][0] for index in batch) - min(lengths[index][0] for index in batch) for batch in taken]
    assert sum(spread) / len(spread) < 2, "at random it would be about 18"


def test_the_order_follows_from_seed_and_epoch() -> None:
    lengths = [(number % 7,) for number in range(50)]

    def order(seed: int, epoch: int) -> list[list[int]]:
        batches = LikeLengthBatches(lengths, 4, 5, seed)
        batches.sampler.set_epoch(epoch)
        return list(batches)

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    assert list(EpochOrder(5, None)) == [0, 1, 2, 3, 4]


def test_processes_share_the_batches() -> None:
    lengths = [(number % 7,) for number in range(50)]
    shares = [list(LikeLengthBatches(lengths, 4, 5, 1, rank, processes=2)) for rank in (0, 1)]
    assert len(shares[0]) == len(shares[1]) == 6, "training needs the same number of steps everywhere"
    indices = [index for share in shares for batch in share for index in batch]
    assert len(set(indices)) == len(indices)
    shares = [list(LikeLengthBatches(lengths, 4, 5, None, rank, processes=2)) for rank in (0, 1)]
    assert sorted(index for share in shares for batch in share for index in batch) == list(range(50)), "none is lost"


def test_each_copy_of_a_picture_is_taken_as_often() -> None:
    copies = [[0, 1, 2] if index % 4 else [0, 2] for index in range(400)]
    batches = LikeLengthBatches([(5,)] * 400, batch_size=8, pool=2, seed=3, copies=copies)
    taken = [index for batch in batches for index in batch]
    assert sorted(index % 400 for index in taken) == list(range(400))
    assert all(index // 400 in copies[index % 400] for index in taken)
    of_three = [index // 400 for index in taken if index % 4]
    assert all(75 < of_three.count(copy) < 125 for copy in range(3))
    assert taken == [index for batch in batches for index in batch], "the same epoch again"
    batches.sampler.set_epoch(1)
    assert sorted(taken) != sorted(index for batch in batches for index in batch)
