"""A batch of images with their captions."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from captioning.datasets.record import Record
from captioning.datasets.view import View
from captioning.preprocessing.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class Batch:
    """B images with up to C captions each. The images are given as ``pixels`` or as cached ``features``.

    Args:
        pixels: (B, 3, image_size, image_size), or None with cached features.
        features: (B, L, D) in float16, or None with pixels.
        num_tail_blocks: number of final encoder blocks that ``features`` still have to pass through.
        token_ids: (B, C, T+1), each row: BOS, words, EOS, padding.
        lengths: (B, C), always on the CPU: number of target tokens, EOS included; 0 for a missing caption.
        records: the B records.
        views: the B views: flipped or not, and the region of the image.
    """

    pixels: Tensor | None
    features: Tensor | None
    num_tail_blocks: int
    token_ids: Tensor
    lengths: Tensor
    records: Sequence[Record]
    views: Sequence[View]

    @property
    def num_captions(self) -> int:
        return int((self.lengths > 0).sum())

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        """Return a copy with all tensors but ``lengths`` on ``device``."""
        pixels, features = (
            None if tensor is None else tensor.to(device, non_blocking=non_blocking)
            for tensor in (self.pixels, self.features)
        )
        token_ids = self.token_ids.to(device, non_blocking=non_blocking)
        return dataclasses.replace(self, pixels=pixels, features=features, token_ids=token_ids)


def pad_captions(captions: Sequence[Sequence[Sequence[int]]]) -> tuple[Tensor, Tensor]:
    """Pad encoded captions to rectangular tensors.

    Args:
        captions: for each image, the token ids of each caption from BOS to EOS.

    Returns:
        ``token_ids`` (B, C, T+1) and ``lengths`` (B, C). A length includes EOS and excludes BOS; 0 means no caption.
    """
    num_captions = max(len(image_captions) for image_captions in captions)
    num_tokens = max(len(token_ids) for image_captions in captions for token_ids in image_captions)
    padded = torch.full((len(captions), num_captions, num_tokens), Vocabulary.PAD_ID)  # (B, C, T+1)
    lengths = torch.zeros((len(captions), num_captions), dtype=torch.long)  # (B, C)
    for image_index, image_captions in enumerate(captions):
        for caption_index, token_ids in enumerate(image_captions):
            padded[image_index, caption_index, : len(token_ids)] = torch.tensor(token_ids)
            lengths[image_index, caption_index] = len(token_ids) - 1
    return padded, lengths
