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
    assert list(EpochShuffleSampler([(3, 0.5), (2, 2.0)], None)) == [0, 1, 2, 3, 4]


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


def test_weights_of_data_sets() -> None:
    """A weight of 2 repeats each image, a weight of 0.5 draws another half of the images in each epoch."""
    sampler = EpochShuffleSampler([(40, 0.5), (10, 2.0), (6, 1.5)], seed=1)
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    for images in epochs:
        assert len(images) == len(sampler) == 20 + 20 + 9
        halved = [index for index in images if index < 40]
        assert len(set(halved)) == len(halved) == 20
        assert all(images.count(index) == 2 for index in range(40, 50))
        assert sorted(images.count(index) for index in range(50, 56)) == [1, 1, 1, 2, 2, 2]
    assert {index for index in epochs[0] if index < 40} != {index for index in epochs[1] if index < 40}


def test_captions_per_image() -> None:
    """At most this number of captions is drawn each time; an image with fewer keeps all of them."""
    lengths = [(9, 8, 7, 6, 5), (4, 3), (6,)] * 20
    batches = LengthGroupedBatchSampler(lengths, 8, 2, seed=1, captions_per_image=2)
    keys = [key for batch in batches for key in batch]
    for key in keys:
        if len(lengths[key.image_index]) <= 2:
            assert key.captions is None
        else:
            assert key.captions is not None
            assert list(key.captions) == sorted(set(key.captions))
            assert len(key.captions) == 2
    assert {caption for key in keys for caption in key.captions or ()} == set(range(5))
    assert keys == [key for batch in batches for key in batch]
