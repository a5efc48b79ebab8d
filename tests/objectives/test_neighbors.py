"""Nearest neighbors of training images, and the reward under their references."""

import dataclasses
from pathlib import Path

import pytest
import torch

from captioning.objectives import NeighborRewardConfig, neighbors
from captioning.objectives.neighbors import nearest_neighbors, nearest_neighbors_within
from captioning.objectives.rewards import CiderDReward
from captioning.utils.errors import CaptioningError
from tests.objectives.test_self_critical import RECORDS, VOCABULARY, make_hypothesis


def test_the_most_similar_images_are_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the direction from the mean of all images, without the image itself, across chunks."""
    monkeypatch.setattr(neighbors, "_CHUNK_SIZE", 2)
    points = torch.tensor([[4.0, 0.0], [1.0, 0.3], [-3.0, -1.0], [-5.0, 3.0], [3.0, -2.3]])  # 0, 17, 198, 149, 323°
    assert nearest_neighbors(100 + 4 * points, 2) == [[1, 4], [0, 4], [3, 4], [2, 1], [0, 1]]
    with pytest.raises(CaptioningError, match=r"neighbors.k must be < 5, the number of training images, got 5"):
        nearest_neighbors(points, 5)


def test_the_reward_of_neighbors_is_weighted() -> None:
    own_reward = CiderDReward(RECORDS, VOCABULARY)
    reward = CiderDReward(RECORDS, VOCABULARY, neighbors=[[2, 1], [0, 2], [0, 1]], neighbor_weight=0.25)
    caption = make_hypothesis("a big dog sits")
    first, second, third = (own_reward(record, caption) for record in RECORDS)
    assert len({first, second, third}) == 3
    assert reward(RECORDS[0], caption) == pytest.approx(0.75 * first + 0.25 * (second + third) / 2)
    assert reward(RECORDS[1], caption) == pytest.approx(0.75 * second + 0.25 * (first + third) / 2)


def test_document_frequencies_are_those_of_the_dataset() -> None:
    """As in validation. The images of the datasets are interleaved."""
    caption = make_hypothesis("a big dog sits")
    others = [
        dataclasses.replace(record, image_path=Path(f"other-{index}.jpg"), dataset="other", captions=["a big red ball"])
        for index, record in enumerate(RECORDS * 3)
    ]
    mixture = [record for pair in zip(RECORDS, others, strict=False) for record in pair] + others[len(RECORDS) :]
    reward, alone = CiderDReward(mixture, VOCABULARY), CiderDReward(RECORDS, VOCABULARY)
    for record in RECORDS:
        assert reward(record, caption) == alone(record, caption)


def test_invalid_settings() -> None:
    with pytest.raises(CaptioningError, match=r"neighbors.k must be >= 1, got 0"):
        NeighborRewardConfig(k=0)
    for weight in (0.0, 1.5):
        with pytest.raises(CaptioningError, match=r"neighbors.weight must be in \(0, 1\], got "):
            NeighborRewardConfig(weight=weight)


def test_neighbors_are_images_of_the_same_data_set() -> None:
    features = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    groups = ["coco", "flickr8k", "coco"] * 10
    for index, nearest in enumerate(nearest_neighbors_within(features, groups, 3)):
        assert len(set(nearest) - {index}) == 3
        assert {groups[neighbor] for neighbor in nearest} == {groups[index]}
    assert nearest_neighbors_within(features, ["coco"] * 30, 3) == nearest_neighbors(features, 3)
