"""Losses: small functions over tensors, one number per caption on average, so that none depends on the batch's size."""

import torch.nn.functional as F
from torch import Tensor


def likelihood(logits: Tensor, targets: Tensor, captions: int) -> Tensor:
    """−log p(y | a), summed over a caption's words, averaged over the captions.

    Args:
        logits: (N, V) of the real words.
        targets: (N,).
        captions: how many captions those words belong to.
    """
    return F.cross_entropy(logits, targets, reduction="sum") / captions


def doubly_stochastic(weights: Tensor, captions: int) -> Tensor:
    """Σ_i (1 − Σ_t α_ti)², averaged over the captions (eq. 14): look everywhere once.

    Args:
        weights: (B, C, T, L), zero where a caption has ended.
        captions: how many of the B·C are captions; an empty row would add L.
    """
    looked = weights.sum(dim=2)  # (B, C, L)
    is_caption = looked.sum(dim=-1, keepdim=True) > 0
    return ((1 - looked).square() * is_caption).sum() / captions
