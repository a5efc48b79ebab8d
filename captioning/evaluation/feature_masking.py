"""Masking test of attention: how much a word's probability depends on the features it did not attend to.

It measures whether attention to a single location means that the word depends on this location only.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from captioning.models.attention import AttentionFn
from captioning.models.decoder import Decoder


def attended_only_log_probs(
    decoder: Decoder, features: Tensor, filler: Tensor, token_ids: Sequence[int], attention_fn: AttentionFn | None
) -> Tensor:
    """log p of each token, and again with every location masked but the most attended one.

    Only the context of the token itself is computed from masked features. The initial state, the states of the earlier
    tokens and the attention scores stay those of the unmasked image. The difference is therefore exactly 0 for hard
    attention to one location without a ``feature_mixer``, although its initial state and its choice of the location
    depend on the whole image.

    Args:
        decoder: in evaluation mode.
        features: (1, L, D), encoder output of an image.
        filler: (D,), replaces the features of masked locations. A mean over several images keeps the features in the
            distribution of the training.
        token_ids: T + 1 token ids, from ``<start>`` to ``<end>``.
        attention_fn: attention function; None selects the default of the attention module.

    Returns:
        log-probabilities (T, 2), unmasked and masked.
    """
    memory, state = decoder.init_state(features)
    rows = []
    for token_id, target in itertools.pairwise(token_ids):
        token = torch.tensor([[token_id]], device=features.device)
        log_probs, next_state, attended = decoder.step(token, state, memory, attention_fn)
        location = attended.weights[0, 0].argmax()
        masked = filler.expand_as(features).clone()
        masked[0, location] = features[0, location]
        masked_memory = memory._replace(features=decoder.init_state(masked)[0].features)
        masked_log_probs, _, _ = decoder.step(token, state, masked_memory, attention_fn)
        rows.append(torch.stack((log_probs[0, 0, target], masked_log_probs[0, 0, target])))
        state = next_state
    return torch.stack(rows).float().cpu()
