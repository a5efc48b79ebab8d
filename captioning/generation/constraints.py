"""Constraints on the next token: special tokens, minimum length, repeated n-grams."""

import torch
from torch import Tensor

from captioning.generation.config import GenerationConfig
from captioning.preprocessing.vocabulary import Vocabulary

# These tokens are never generated. The probabilities are not renormalized, so the log-probabilities of a caption equal
# those of teacher forcing.
_SUPPRESSED_IDS = (Vocabulary.PAD_ID, Vocabulary.BOS_ID, Vocabulary.UNK_ID)


def mask_special_tokens(scores: Tensor, forbid_eos: bool) -> Tensor:
    """Set the scores (..., V) of ``<pad>``, ``<start>`` and ``<unk>`` to −∞, and of ``<end>`` if ``forbid_eos``."""
    masked_ids = [*_SUPPRESSED_IDS, Vocabulary.EOS_ID] if forbid_eos else list(_SUPPRESSED_IDS)
    return scores.index_fill(-1, torch.tensor(masked_ids, device=scores.device), -torch.inf)


def apply_constraints(config: GenerationConfig, log_probs: Tensor, generated: Tensor) -> Tensor:
    """Set the log-probabilities of forbidden next tokens to −∞.

    Args:
        config: reads ``min_length`` and ``no_repeat_ngram_size``.
        log_probs: (B, K, V), of the next token.
        generated: (B, K, T), the previous tokens.
    """
    length, n = generated.shape[-1], config.no_repeat_ngram_size
    allowed = mask_special_tokens(log_probs, forbid_eos=length < config.min_length)
    if n and length >= n:
        allowed = allowed.masked_fill(_completes_repeated_ngram(allowed, generated, n), -torch.inf)
        # If no token is left, the caption ends regardless of min_length.
        is_stuck = allowed.amax(-1, keepdim=True) == -torch.inf  # (B, K, 1)
        is_eos = torch.arange(allowed.shape[-1], device=generated.device) == Vocabulary.EOS_ID  # (V,)
        allowed = torch.where(is_stuck & is_eos, log_probs, allowed)
    return allowed


def _completes_repeated_ngram(scores: Tensor, generated: Tensor, n: int) -> Tensor:
    """True (B, K, V) for tokens that complete an n-gram which already occurs among the tokens (B, K, T)."""
    ngrams = generated.unfold(-1, n, 1)  # (B, K, T-n+1, n)
    prefix = generated[:, :, None, generated.shape[-1] - n + 1 :]  # (B, K, 1, n-1)
    has_prefix = (ngrams[..., :-1] == prefix).all(-1)  # (B, K, T-n+1)
    return torch.zeros_like(scores).scatter_add(-1, ngrams[..., -1], has_prefix.to(scores.dtype)) > 0
