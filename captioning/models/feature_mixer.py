"""Operations on encoder features (B, L, D) before attention: dropout of elements, channels and locations, mixing."""

from typing import Literal

import torch
from torch import Tensor, nn

from captioning.models.linear import Linear
from captioning.utils.errors import CaptioningError

MixingMode = Literal["mean", "self_attention", "bilstm"]
FeatureMixerType = Literal["none", MixingMode]


def drop_locations(features: Tensor, keep_prob: float) -> Tensor:
    """Keep a random subset of the locations of each image, in their original order.

    Args:
        features: (B, L, D).
        keep_prob: fraction of the locations to keep. At least one location is kept.

    Returns:
        (B, max(1, round(L * keep_prob)), D)
    """
    if keep_prob == 1:
        return features
    num_kept = max(1, round(features.shape[1] * keep_prob))
    kept = torch.rand(features.shape[:2], device=features.device).topk(num_kept).indices.sort().values  # (B, num_kept)
    return features.gather(1, kept[..., None].expand(-1, -1, features.shape[-1]))


class ByteDropout(nn.Dropout):
    """Dropout whose probability is rounded to a multiple of 1/256.

    It draws one random byte per element, eight at a time. ``nn.Dropout`` draws each element by itself on a CPU, which
    takes a fifth of a training step at 256 locations.
    """

    def forward(self, features: Tensor) -> Tensor:
        threshold = round(self.p * 256)
        if not self.training or threshold == 0:
            return features
        if threshold == 256:
            return features * 0
        words = torch.empty(-(-features.numel() // 8), dtype=torch.int64, device=features.device)
        words.random_(-(2**63), None)  # all 64 bits
        keep = words.view(torch.uint8)[: features.numel()].view(features.shape) >= threshold
        return features * keep * (256 / (256 - threshold))


class SpatialDropout(nn.Dropout):
    """Spatial dropout: zeroes the same channels at all locations of an image.

    With independent masks per location, attention over many locations recovers the dropped channels, and the model
    overfits.
    """

    def forward(self, features: Tensor) -> Tensor:
        return features * super().forward(torch.ones_like(features[:, :1]))  # mask (B, 1, D)


class FeatureMixer(nn.Module):
    """Residual mixing of features across locations: a + f(LayerNorm(a)), (B, L, D) -> (B, L, D).

    With ``mean``, every location contains a summary of the whole image, so attention need not spread over many
    locations to gather it. This helps hard attention, which reads one location per token.

    Args:
        mode: f is a linear layer on the mean over locations, multi-head self-attention, or a bidirectional LSTM.
        feature_size: D.
        num_heads: number of attention heads of ``self_attention``.
    """

    def __init__(self, mode: MixingMode, feature_size: int, num_heads: int = 4) -> None:
        super().__init__()
        if mode != "mean" and feature_size % (2 * num_heads):
            raise CaptioningError(
                f"feature_mixer '{mode}' requires a feature size divisible by {2 * num_heads}, not {feature_size}; "
                "set projection_size accordingly"
            )
        self.mode = mode
        self.norm = nn.LayerNorm(feature_size)
        self.mixer: nn.Module
        match mode:
            case "mean":
                self.mixer = Linear(feature_size, feature_size)
            case "self_attention":
                self.mixer = nn.MultiheadAttention(feature_size, num_heads, batch_first=True)
            case "bilstm":
                self.mixer = nn.LSTM(feature_size, feature_size // 2, batch_first=True, bidirectional=True)

    def forward(self, features: Tensor) -> Tensor:
        normed = self.norm(features)  # (B, L, D)
        if self.mode == "mean":
            return features + self.mixer(normed.mean(dim=1, keepdim=True))
        if self.mode == "self_attention":
            mixed, _ = self.mixer(normed, normed, normed, need_weights=False)
        else:
            mixed, _ = self.mixer(normed)
        return features + mixed
