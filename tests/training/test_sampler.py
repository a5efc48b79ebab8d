import torch

from captioning.training.sampler import EpochShuffleSampler, LengthGroupedBatchSampler, SampleKey


def test_every_image_once_per_epoch_and_similar_lengths() -> None:
    lengths = [tuple(sorted((value, value - 1), reverse=True)) for value in torch.randint(5, 25, (640,)).tolist()]
    batches = LengthGroupedBatchSampler(lengths, batch_size=16, bucket_batches=50, seed=1)
    taken = list(batches)
    assert sorted(key.image_index for batch in taken for key in batch) == list(range(640))
    assert len(taken) == len(batches) == 40
    longest = [[lengths[key.image_index][0] for key in batch] for batch in taken]
    spread = [max(values) - min(values) for values in longest]
    assert sum(spread) / len(spread) < 2, "a random order has about 18"


def test_order_depends_on_seed_and_epoch() -> None:
    lengths = [(number % 7,) for number in range(50)]

    def order(seed: int, epoch: int) -> list[list[SampleKey]]:
        batches = LengthGroupedBatchSampler(lengths, 4, 5, seed)
        batches.sampler.set_epoch(epoch)
        return list(batches)

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    assert list(EpochShuffleSampler(5, None)) == [0, 1, 2, 3, 4]


def test_processes_share_the_batches() -> None:
    lengths = [(number % 7,) for number in range(50)]
    shares = [list(LengthGroupedBatchSampler(lengths, 4, 5, 1, rank, num_replicas=2)) for rank in (0, 1)]
    assert len(shares[0]) == len(shares[1]) == 6, "training needs the same number of steps everywhere"
    indices = [key.image_index for share in shares for batch in share for key in batch]
    assert len(set(indices)) == len(indices)
    shares = [list(LengthGroupedBatchSampler(lengths, 4, 5, None, rank, num_replicas=2)) for rank in (0, 1)]
    assert sorted(key.image_index for share in shares for batch in share for key in batch) == list(range(50))


def test_views_are_drawn_uniformly_from_the_allowed_ones() -> None:
    views = [[0, 1, 2] if index % 4 else [0, 2] for index in range(400)]
    batches = LengthGroupedBatchSampler([(5,)] * 400, batch_size=8, bucket_batches=2, seed=3, views=views)
    keys = [key for batch in batches for key in batch]
    assert sorted(key.image_index for key in keys) == list(range(400))
    assert all(key.view in views[key.image_index] for key in keys)
    drawn = [key.view for key in keys if key.image_index % 4]
    assert all(75 < drawn.count(view) < 125 for view in range(3))
    assert keys == [key for batch in batches for key in batch], "the same epoch again"
    batches.sampler.set_epoch(1)
    assert sorted(keys) != sorted(key for batch in batches for key in batch)
