"""Sampled location sequences of hard attention, with their rewards.

Shapes: R captions, S sampled location sequences per caption, T tokens, L locations, H hidden size, N tokens without
padding of all R · S sequences.
"""

import functools
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from captioning.models.attention import AttentionFn, AttentionOutput, attend_at
from captioning.models.decoder import Decoder, DecoderOutput
from captioning.models.decoder_output import HardAttentionTrace
from captioning.objectives.token_cross_entropy import token_cross_entropy


@dataclass(frozen=True)
class LocationSamples:
    """R captions under teacher forcing, each with S sampled location sequences.

    Values of tokens are arranged as (R, S, T) and zero after the end of a caption.

    Args:
        output: output of a decoder with hard attention for (B, C · S) captions, the S samples of a caption next to
            each other.
        num_samples: S.
        decoder: the decoder.
        label_smoothing: label smoothing of the reward.
    """

    output: DecoderOutput
    num_samples: int
    decoder: Decoder
    label_smoothing: float = 0.0

    @property
    def trace(self) -> HardAttentionTrace:
        assert self.output.attention_trace is not None
        return self.output.attention_trace

    @cached_property
    def rewards(self) -> Tensor:
        """(R, S, T), log p(y_t | s_≤t)."""
        return self.arrange(-token_cross_entropy(self.output.logits, self.output.targets, self.label_smoothing))

    def sum_affected(self, values: Tensor) -> Tensor:
        """For each location, the sum of the values (R, S, T) of the tokens that it affects.

        A location affects its own token and later ones. With the architecture ``luong`` it affects its own token only.
        """
        return values if self.decoder.attends_after_lstm else rewards_to_go(values)

    @cached_property
    def token_mask(self) -> Tensor:
        """(R, S, T), true for tokens, false for padding."""
        return self.arrange(torch.ones_like(self.output.targets, dtype=torch.bool))

    @cached_property
    def locations(self) -> Tensor:
        """(R, S, T), s_t; −1 where all locations contribute."""
        return self.arrange(self.trace.locations)

    @cached_property
    def is_sampled(self) -> Tensor:
        """(R, S, T), true for tokens with a sampled location, false for the expectation and for padding."""
        return (self.locations >= 0) & self.token_mask

    @cached_property
    def sampled_log_probs(self) -> Tensor:
        """(R, S, T), log α of the sampled location; meaningless where no location was sampled."""
        index = self.trace.locations.clamp(min=0)[:, None]  # (N, 1)
        return self.arrange(self.trace.attention_log_probs.gather(1, index).squeeze(1))

    @cached_property
    def entropies(self) -> Tensor:
        """(R, S, T), H[α_t] in nats."""
        log_probs = self.trace.attention_log_probs  # (N, L)
        return self.arrange(-(log_probs.exp() * log_probs).sum(-1))

    def arrange(self, values: Tensor) -> Tensor:
        """Arrange values of the tokens (N, …) as (R, S, T, …)."""
        index = self.trace.token_index.unbind(1)
        padded = values.new_zeros(*self.output.token_mask.shape, *values.shape[1:]).index_put(index, values)
        return padded.reshape(-1, self.num_samples, *padded.shape[2:])

    def log_prob_at(self, locations: Tensor) -> Tensor:
        """log p(y_t | s_<t, s_t = k) for each of K given locations.

        Args:
            locations: (R, S, T, K).

        Returns:
            log-probabilities (R, S, T, K).
        """
        grid = self.output.token_mask.shape  # B, C · S, T
        token_locations = locations.view(*grid, -1)[self.trace.token_index.unbind(1)]  # (N, K)
        logits = self.decoder.logits_at_locations(self.trace, token_locations)  # (N, K, V)
        targets = self.output.targets[:, None].expand_as(token_locations)
        losses = token_cross_entropy(logits.flatten(0, 1), targets.flatten(), self.label_smoothing)
        return self.arrange(-losses.view_as(token_locations))


def attend_sequence(locations: Tensor, decoder: Decoder) -> AttentionFn:
    """Attention function of teacher forcing that attends to the given locations (B, C, T)."""
    if decoder.attends_after_lstm:  # at all steps at once
        return functools.partial(attend_at, locations.flatten(1))
    steps = iter(locations.unbind(-1))

    def attention_fn(scores: Tensor, features: Tensor) -> AttentionOutput:
        # Teacher forcing computes only the leading block of unfinished captions.
        return attend_at(next(steps)[: scores.shape[0], : scores.shape[1]], scores, features)

    return attention_fn


def rewards_to_go(rewards: Tensor) -> Tensor:
    """Σ_{t' ≥ t} r_t' of (R, S, T)."""
    return rewards.flip(-1).cumsum(-1).flip(-1)
