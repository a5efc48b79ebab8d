"""The reward of self-critical training."""

from collections.abc import Sequence

import torch
from torch import Tensor

from captioning.datasets.record import Record
from captioning.evaluation.metrics import CiderD
from captioning.generation import Hypothesis
from captioning.objectives.base import TrainData
from captioning.objectives.neighbors import NeighborRewardConfig, nearest_neighbors_within
from captioning.preprocessing.tokenizer import tokenize
from captioning.preprocessing.vocabulary import Vocabulary

_EOS = Vocabulary.SPECIAL_TOKENS[Vocabulary.EOS_ID]


class CiderDReward:
    """CIDEr-D with document frequencies of the training images of the same dataset, as in validation.

    Document frequencies of a mixture would be dominated by its largest dataset and would favor its phrases for all
    images. The end token counts as a word. Otherwise truncated captions ("a dog with a") would receive the same
    reward as complete ones.

    Args:
        records: training split.
        vocabulary: vocabulary of the model.
        neighbors: for each image the indices of its neighbors, which are images of its dataset; empty for the image's
            own references only.
        neighbor_weight: weight of the mean reward under the references of the neighbors.
    """

    def __init__(
        self,
        records: Sequence[Record],
        vocabulary: Vocabulary,
        neighbors: Sequence[Sequence[int]] = (),
        neighbor_weight: float = 0.0,
    ) -> None:
        self.vocabulary = vocabulary
        self.index_by_image = {record.image_path: index for index, record in enumerate(records)}
        references: dict[str, list[list[list[str]]]] = {}  # of each image of each dataset
        self._positions = []  # of each image in its dataset
        for record in records:
            dataset_references = references.setdefault(record.dataset, [])
            self._positions.append(len(dataset_references))
            dataset_references.append([[*tokenize(caption), _EOS] for caption in record.captions])
        self._cider_d = {dataset: CiderD(images) for dataset, images in references.items()}
        self.neighbors = neighbors
        self.neighbor_weight = neighbor_weight

    def __call__(self, record: Record, hypothesis: Hypothesis) -> float:
        index = self.index_by_image[record.image_path]
        neighbors = self.neighbors[index] if self.neighbors else ()
        words = self.vocabulary.decode(hypothesis.token_ids) + [_EOS] * hypothesis.is_finished
        images = [self._positions[image] for image in (index, *neighbors)]
        own_reward, *neighbor_rewards = self._cider_d[record.dataset].score_against(words, images)
        if not neighbor_rewards:
            return own_reward
        mean = sum(neighbor_rewards) / len(neighbor_rewards)
        return (1 - self.neighbor_weight) * own_reward + self.neighbor_weight * mean


def build_reward(data: TrainData, vocabulary: Vocabulary, neighbors: NeighborRewardConfig | None) -> CiderDReward:
    """The reward of a run on this training data."""
    if neighbors is None:
        return CiderDReward(data.records, vocabulary)
    table = nearest_neighbors_within(data.mean_features(), [record.dataset for record in data.records], neighbors.k)
    return CiderDReward(data.records, vocabulary, table, neighbors.weight)


def compute_rewards(
    reward: CiderDReward, records: Sequence[Record], hypotheses: Sequence[Sequence[Hypothesis]]
) -> Tensor:
    """Rewards (B, C) of the hypotheses of each record."""
    return torch.tensor(
        [
            [reward(record, hypothesis) for hypothesis in image_hypotheses]
            for record, image_hypotheses in zip(records, hypotheses, strict=True)
        ]
    )
