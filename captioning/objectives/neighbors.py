"""Nearest neighbors of training images, for the neighbor reward of self-critical training."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from captioning.objectives.base import check_minimum
from captioning.utils.errors import CaptioningError

_CHUNK_SIZE = 250  # images whose similarities to all others are in memory at the same time


@dataclass(frozen=True)
class NeighborRewardConfig:
    """Settings of the neighbor reward: the references of the nearest training images contribute to the reward.

    This regularizes against memorized captions. Requires the feature cache.

    Args:
        k: number of nearest training images (cosine similarity of centered mean features).
        weight: weight of their mean reward; the image's own reward has the weight 1 − ``weight``.
    """

    k: int = 10
    weight: float = 0.5

    def __post_init__(self) -> None:
        check_minimum("neighbors.k", self.k, 1)
        if not 0 < self.weight <= 1:
            raise CaptioningError(
                f"neighbors.weight must be in (0, 1], got {self.weight}; omit neighbors to disable it"
            )


def nearest_neighbors(mean_features: Tensor, k: int) -> list[list[int]]:
    """For each image, the indices of the k most similar other images, most similar first.

    Similarity is the cosine of mean features. The mean over all images is subtracted first; otherwise components that
    all images share would dominate it.

    Args:
        mean_features: (N, D), float32.
        k: number of neighbors.
    """
    num_images = len(mean_features)
    if k >= num_images:
        raise CaptioningError(f"neighbors.k must be < {num_images}, the number of training images, got {k}")
    directions = F.normalize(mean_features - mean_features.mean(dim=0), dim=1)
    neighbors: list[list[int]] = []
    for start in range(0, num_images, _CHUNK_SIZE):
        similarities = directions[start : start + _CHUNK_SIZE] @ directions.T  # (chunk, N)
        similarities.diagonal(start).fill_(-torch.inf)  # the image itself
        neighbors += similarities.topk(k).indices.tolist()
    return neighbors


def nearest_neighbors_within(mean_features: Tensor, groups: Sequence[str], k: int) -> list[list[int]]:
    """The nearest neighbors of each image in its own group.

    References of another dataset would reward the style of its captions.

    Args:
        mean_features: (N, D), float32.
        groups: N names of the datasets.
        k: number of neighbors.
    """
    neighbors: list[list[int]] = [[] for _ in groups]
    for group in dict.fromkeys(groups):
        indices = [index for index, name in enumerate(groups) if name == group]
        for index, nearest in zip(indices, nearest_neighbors(mean_features[indices], k), strict=True):
            neighbors[index] = [indices[neighbor] for neighbor in nearest]
    return neighbors
