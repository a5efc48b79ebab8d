"""Which of the training pictures look alike, to the CNN."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from captioning.datasets.features import Features
from captioning.errors import CaptioningError

_AT_ONCE = 250  # pictures whose annotations, in float32, are in memory together


def find_look_alikes(features: Features, rows: Sequence[int], count: int) -> list[list[int]]:
    """For each picture of these rows the numbers, among them, of the others that look most like it, best first.

    By the cosine of their mean annotations, from which that of all pictures is taken off: else what every photo has
    would make all of them alike. Where the CNN's last blocks learn, by what goes into these.
    """
    if count >= len(rows):
        raise CaptioningError(f"look_alikes {count}: must be less than the {len(rows)} training pictures")
    starts = range(0, len(rows), _AT_ONCE)
    means = torch.cat([features[rows[start : start + _AT_ONCE]].float().mean(dim=1) for start in starts])  # (N, D)
    directions = F.normalize(means - means.mean(dim=0), dim=1)
    found: list[list[int]] = []
    for start in starts:
        likeness = directions[start : start + _AT_ONCE] @ directions.T  # (at once, N)
        likeness.diagonal(start).fill_(-torch.inf)  # itself
        found += likeness.topk(count).indices.tolist()
    return found
