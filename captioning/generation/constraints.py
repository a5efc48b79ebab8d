"""Constraints on the next token: special tokens, minimum length, repeated n-grams."""

import math

from captioning.generation.config import GenerationConfig
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils import array_ops as ops
from captioning.utils.array_ops import Array

# These tokens are never generated. The probabilities are not renormalized, so the log-probabilities of a caption equal
# those of teacher forcing.
_SUPPRESSED_IDS = (Vocabulary.PAD_ID, Vocabulary.BOS_ID, Vocabulary.UNK_ID)


def mask_special_tokens(scores: Array, forbid_eos: bool) -> Array:
    """Set the scores (..., V) of ``<pad>``, ``<start>`` and ``<unk>`` to −∞, and of ``<end>`` if ``forbid_eos``."""
    masked_ids = [*_SUPPRESSED_IDS, Vocabulary.EOS_ID] if forbid_eos else list(_SUPPRESSED_IDS)
    index = ops.expand(ops.ids(masked_ids, scores), (*scores.shape[:-1], len(masked_ids)))
    return ops.scatter_last(scores, index, -math.inf)


def apply_constraints(config: GenerationConfig, log_probs: Array, generated: Array) -> Array:
    """Set the log-probabilities of forbidden next tokens to −∞.

    Args:
        config: reads ``min_length`` and ``no_repeat_ngram_size``.
        log_probs: (B, K, V), of the next token.
        generated: (B, K, T), the previous tokens.
    """
    length, n = generated.shape[-1], config.no_repeat_ngram_size
    allowed = mask_special_tokens(log_probs, forbid_eos=length < config.min_length)
    if n and length >= n:
        allowed = ops.scatter_last(allowed, _repeating_tokens(generated, n), -math.inf)
        # If no token is left, the caption ends regardless of min_length.
        is_stuck = ops.maximum(allowed, -1) == -math.inf  # (B, K)
        end = Vocabulary.EOS_ID
        allowed[..., end] = ops.where(is_stuck, log_probs[..., end], allowed[..., end])
    return allowed


def _repeating_tokens(generated: Array, n: int) -> Array:
    """Tokens (B, K, T-n+1) that complete an n-gram which already occurs among the tokens (B, K, T).

    Entries without such a token are ``<pad>``, which is never generated.
    """
    ngrams = ops.windows_last(generated, n)  # (B, K, T-n+1, n)
    prefix = generated[:, :, None, generated.shape[-1] - n + 1 :]  # (B, K, 1, n-1)
    has_prefix = (ngrams[..., :-1] == prefix).all(-1)  # (B, K, T-n+1)
    return ops.masked_fill(ngrams[..., -1], ~has_prefix, Vocabulary.PAD_ID)
