"""What becomes of annotations (B, L, D) before they are read: some left out in training, each told of the others."""

from typing import Literal

import torch
from torch import Tensor, nn

from captioning.errors import CaptioningError

NeighbourName = Literal["none", "mean", "self_attention", "bidirectional_lstm"]


def some_places(annotations: Tensor, share: float) -> Tensor:
    """A share of each picture's annotations (B, L, D), other places each time, in their order."""
    if share == 1:
        return annotations
    kept = max(1, round(annotations.shape[1] * share))
    places = torch.rand(annotations.shape[:2], device=annotations.device).topk(kept).indices.sort().values
    return annotations.gather(1, places[..., None].expand(-1, -1, annotations.shape[-1]))


class DropoutOfPictures(nn.Dropout):
    """Leaves the same numbers out of all annotations (B, L, D) of a picture, others of each picture.

    Were they others at each place, a look at many places would make up for them, and pictures be learnt by heart.
    """

    def forward(self, annotations: Tensor) -> Tensor:
        return annotations * super().forward(torch.ones_like(annotations[:, :1]))


class Neighbours(nn.Module):
    """Lets an annotation know the others before it is read: a + f(a), by their mean, self-attention or a two-way LSTM.

    The mean lets even a look at one place see the picture as a whole; then attention need not spread to do so.
    """

    def __init__(self, kind: NeighbourName, annotation_size: int, heads: int = 4) -> None:
        super().__init__()
        if kind != "mean" and annotation_size % (2 * heads):
            raise CaptioningError(f"neighbours '{kind}' needs an encoder width that {2 * heads} divides")
        self.kind = kind
        self.norm = nn.LayerNorm(annotation_size)
        self.mix: nn.Module
        if kind == "mean":
            self.mix = nn.Linear(annotation_size, annotation_size)
        elif kind == "self_attention":
            self.mix = nn.MultiheadAttention(annotation_size, heads, batch_first=True)
        elif kind == "bidirectional_lstm":
            self.mix = nn.LSTM(annotation_size, annotation_size // 2, batch_first=True, bidirectional=True)
        else:
            raise CaptioningError(
                f"unknown neighbours '{kind}'; choose none, mean, self_attention or bidirectional_lstm"
            )

    def forward(self, annotations: Tensor) -> Tensor:
        read = self.norm(annotations)
        if self.kind == "mean":
            return annotations + self.mix(read.mean(dim=1, keepdim=True))
        mixed = self.mix(read, read, read, need_weights=False) if self.kind == "self_attention" else self.mix(read)
        return annotations + mixed[0]  # both kinds answer with (output, something else)
