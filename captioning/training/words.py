"""Teaches an encoder what captions speak of, before a decoder learns to say it.

Fang et al. 2015, "From Captions to Visual Concepts and Back", and Wu et al. 2016, "What Value Do Explicit High Level
Concepts Have in Vision to Language Problems?": a CNN that knows the words of captions, and not ImageNet's classes
alone, is seen through better.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from captioning.datasets.records import Record
from captioning.text import Vocabulary, tokenise


class Naming(nn.Module):
    """Foresees from a picture's mean annotation which words are said of it.

    Args:
        annotation_size: D, the encoder's width.
        vocabulary_size: V.
        dropout: on the mean annotation.
    """

    def __init__(self, annotation_size: int, vocabulary_size: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(annotation_size, affine=False)
        self.dropout = nn.Dropout(dropout)
        self.words = nn.Linear(annotation_size, vocabulary_size)
        nn.init.normal_(self.words.weight, std=0.001)

    def begin(self, records: Sequence[Record], vocabulary: Vocabulary) -> None:
        """Begin by foreseeing of every picture what is said of most: to learn that first would take too many steps."""
        shares = torch.zeros(len(vocabulary))
        for record in records:
            for caption in record.captions:
                shares[list(set(vocabulary.encode(tokenise(caption))))] += 1 / len(record.captions)
        with torch.no_grad():
            self.words.bias.copy_((shares / len(records)).logit(eps=1e-4))

    def forward(self, annotations: Tensor) -> Tensor:
        """Annotations (B, L, D) → logits (B, V), one for each word."""
        return self.words(self.dropout(self.norm(annotations.mean(dim=1))))
