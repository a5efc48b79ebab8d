"""Gradient estimators of the variational bound of hard attention.

The bound L_s = Σ_s p(s | a) log p(y | s, a) ≤ log p(y | a) (eq. 10) sums over all location sequences s, which are too
many. Its gradient is estimated from sampled sequences (eqs 11-12). docs/hard-attention.md derives the estimators.
Equation numbers: Xu et al. 2015, "Show, Attend and Tell".

Shapes: R captions, S sampled location sequences per caption, T tokens, L locations, H hidden size.
"""

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioning.models.attention import AttentionFn, attend_sample, attend_straight_through_gumbel
from captioning.models.decoder import Decoder, DecoderOutput
from captioning.objectives.base import check_fraction, check_minimum


@dataclass(frozen=True)
class AttentionRollout:
    """R captions under teacher forcing, each with S sampled location sequences; zero after the end of a caption."""

    rewards: Tensor  # (R, S, T), log p(y_t | s_≤t)
    token_mask: Tensor  # (R, S, T)
    locations: Tensor  # (R, S, T), s_t; -1 where all locations contribute
    attention_log_probs: Tensor  # (R, S, T, L), log α
    hidden: Tensor  # (R, S, T, H), the hidden state that computed the attention scores
    output: DecoderOutput
    decoder: Decoder
    label_smoothing: float

    @classmethod
    def from_decoder_output(
        cls, output: DecoderOutput, num_samples: int, decoder: Decoder, label_smoothing: float = 0.0
    ) -> "AttentionRollout":
        """Build from the decoder output of (B, C · S) captions, the S samples of a caption next to each other.

        Args:
            output: output of a decoder with hard attention.
            num_samples: S.
            decoder: the decoder.
            label_smoothing: label smoothing of the reward.
        """
        trace = output.attention_trace
        assert trace is not None
        spread = functools.partial(_spread, output, num_samples)
        return cls(
            rewards=spread(_log_probs(output.logits, output.targets, label_smoothing)),
            token_mask=spread(torch.ones_like(output.targets, dtype=torch.bool)),
            locations=spread(trace.locations),
            attention_log_probs=spread(trace.attention_log_probs),
            hidden=spread(trace.state.hidden),
            output=output,
            decoder=decoder,
            label_smoothing=label_smoothing,
        )

    @property
    def is_sampled(self) -> Tensor:
        """(R, S, T), true for tokens with a sampled location, false for the expectation and for padding."""
        return (self.locations >= 0) & self.token_mask

    def log_prob_at(self, locations: Tensor) -> Tensor:
        """log p(y_t | s_<t, s_t = k) for each of K given locations.

        Args:
            locations: (R, S, T, K).

        Returns:
            log-probabilities (R, S, T, K).
        """
        trace = self.output.attention_trace
        assert trace is not None
        grid = self.output.attention_weights.shape[:3]  # B, C · S, T
        token_locations = locations.view(*grid, -1)[trace.token_index.unbind(1)]  # (N, K)
        logits = self.decoder.logits_at_locations(trace, token_locations).mT  # (N, V, K)
        targets = self.output.targets[:, None].expand_as(token_locations)
        return _spread(self.output, self.rewards.shape[1], _log_probs(logits, targets, self.label_smoothing))


def _spread(output: DecoderOutput, num_samples: int, values: Tensor) -> Tensor:
    """Arrange values of the N tokens (N, …) as (R, S, T, …)."""
    assert output.attention_trace is not None
    index = output.attention_trace.token_index.unbind(1)
    padded = values.new_zeros(*output.attention_weights.shape[:3], *values.shape[1:]).index_put(index, values)
    return padded.reshape(-1, num_samples, *padded.shape[2:])


def _log_probs(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    return -F.cross_entropy(logits, targets, reduction="none", label_smoothing=label_smoothing)


class Estimate(NamedTuple):
    """∂ L_s ≈ ∂ pathwise + (returns − baseline) ∂ log α_{s_t}, summed over tokens."""

    pathwise: Tensor  # (R, S, T), differentiated as it is
    returns: Tensor  # (R, S, T), reward attributed to the sampled location
    baseline: Tensor  # (R, S, T), independent of the sampled location
    baseline_loss: Tensor | None = None  # scalar, trains a learned baseline


def rewards_to_go(rewards: Tensor) -> Tensor:
    """Σ_{t' ≥ t} r_t' of (R, S, T). A location affects its own token and later ones only."""
    return rewards.flip(-1).cumsum(-1).flip(-1)


def leave_one_out_mean(returns: Tensor) -> Tensor:
    """For each of the S samples (R, S, …), the mean of the other samples. Detached, as a baseline must be."""
    returns = returns.detach()
    return (returns.sum(dim=1, keepdim=True) - returns) / (returns.shape[1] - 1)


class GradientEstimator(nn.Module, ABC):
    """An estimator of the gradient of L_s.

    Args:
        num_samples: S, number of sampled location sequences per caption.
        score_function_weight: λ_r, weight of the score-function term; 1 gives the gradient of the bound (eq. 12).
    """

    min_samples = 1

    def __init__(self, num_samples: int, score_function_weight: float) -> None:
        super().__init__()
        check_minimum(f"{type(self).__name__}.num_samples", num_samples, self.min_samples)
        check_minimum(f"{type(self).__name__}.score_function_weight", score_function_weight, 0)
        self.num_samples = num_samples
        self.score_function_weight = score_function_weight

    def setup(self, hidden_size: int) -> None:
        """Create parameters that depend on the decoder's hidden size H."""

    def attention_fn(self, generator: torch.Generator) -> AttentionFn:
        """How locations are sampled."""
        return functools.partial(attend_sample, generator=generator)

    @abstractmethod
    def estimate(self, rollout: AttentionRollout) -> Estimate: ...

    def update(self, rollout: AttentionRollout) -> None:
        """Update state after a training step."""


class Reinforce(GradientEstimator):
    """The estimator of the paper: the return of each location is log p(y | s, a) of the whole caption, the baseline a
    moving average of it (eqs 11-12).

    Args:
        decay: factor of the old value in b ← decay · b + (1 − decay) · log p(y | s, a).
        num_samples: S, number of sampled location sequences per caption.
        score_function_weight: λ_r; 1 gives the gradient of the bound.
    """

    baseline: Tensor

    def __init__(self, decay: float = 0.9, num_samples: int = 1, score_function_weight: float = 1.0) -> None:
        super().__init__(num_samples, score_function_weight)
        check_fraction("Reinforce.decay", decay)
        self.decay = decay
        self.register_buffer("baseline", torch.zeros(()))  # b, saved in checkpoints

    def estimate(self, rollout: AttentionRollout) -> Estimate:
        returns = rollout.rewards.sum(dim=-1, keepdim=True).expand_as(rollout.rewards)
        return Estimate(rollout.rewards, returns, self.baseline.expand_as(returns))

    @torch.no_grad()
    def update(self, rollout: AttentionRollout) -> None:
        """Move the baseline toward the mean over the captions with sampled locations."""
        is_sampled = rollout.is_sampled[..., 0]  # (R, S)
        count = is_sampled.sum()
        mean = (rollout.rewards.sum(-1) * is_sampled).sum() / count.clamp(min=1)
        updated = self.decay * self.baseline + (1 - self.decay) * mean
        self.baseline.copy_(torch.where(count > 0, updated, self.baseline))


class LeaveOneOut(GradientEstimator):
    """REINFORCE leave-one-out (Kool et al. 2019): the baseline is the mean reward-to-go of the caption's other samples.

    Args:
        num_samples: S, number of sampled location sequences per caption, at least 2.
        score_function_weight: λ_r; 1 gives the gradient of the bound.
    """

    min_samples = 2

    def __init__(self, num_samples: int = 4, score_function_weight: float = 1.0) -> None:
        super().__init__(num_samples, score_function_weight)

    def estimate(self, rollout: AttentionRollout) -> Estimate:
        returns = rewards_to_go(rollout.rewards)
        return Estimate(rollout.rewards, returns, leave_one_out_mean(returns))


class LearnedBaseline(GradientEstimator):
    """REINFORCE with rewards-to-go and a learned baseline, linear in the hidden state and in the tokens left.

    Args:
        num_samples: S, number of sampled location sequences per caption.
        score_function_weight: λ_r; 1 gives the gradient of the bound.
    """

    value_head: nn.Linear

    def __init__(self, num_samples: int = 1, score_function_weight: float = 1.0) -> None:
        super().__init__(num_samples, score_function_weight)

    def setup(self, hidden_size: int) -> None:
        self.value_head = nn.Linear(hidden_size, 2)

    def estimate(self, rollout: AttentionRollout) -> Estimate:
        offset, per_token = self.value_head(rollout.hidden.detach()).unbind(-1)  # (R, S, T) each
        tokens_left = rewards_to_go(rollout.token_mask)
        baseline = (offset + per_token * tokens_left) * rollout.token_mask
        returns = rewards_to_go(rollout.rewards)
        errors = (returns.detach() - baseline) / tokens_left.clamp(min=1) * rollout.is_sampled
        # A mean over tokens: the gradient norm is clipped over all parameters, and the head must not dominate it.
        baseline_loss = errors.square().sum() / rollout.token_mask.sum()
        return Estimate(rollout.rewards, returns, baseline, baseline_loss)


class StraightThroughGumbel(GradientEstimator):
    """Straight-through Gumbel-softmax (Jang et al. 2017): the gradient passes through the relaxed sample. Biased.

    Args:
        num_samples: S, number of sampled location sequences per caption.
    """

    def __init__(self, num_samples: int = 1) -> None:
        super().__init__(num_samples, score_function_weight=0.0)

    def attention_fn(self, generator: torch.Generator) -> AttentionFn:
        return functools.partial(attend_straight_through_gumbel, generator=generator)

    def estimate(self, rollout: AttentionRollout) -> Estimate:
        zeros = torch.zeros_like(rollout.rewards)
        return Estimate(rollout.rewards, zeros, zeros)


class TopKMarginalized(GradientEstimator):
    """Rao-Blackwellized REINFORCE (Liu et al. 2019), per step: each token is summed exactly over its k most probable
    locations; the sample stands for the other locations and for later tokens.

    Args:
        k: number of locations in the exact sum.
        num_samples: S, number of sampled location sequences per caption, at least 2 for the leave-one-out baseline.
        score_function_weight: λ_r; 1 gives the gradient of the bound.
    """

    min_samples = 2

    def __init__(self, k: int = 4, num_samples: int = 2, score_function_weight: float = 1.0) -> None:
        super().__init__(num_samples, score_function_weight)
        check_minimum("TopKMarginalized.k", k, 1)
        self.k = k

    def estimate(self, rollout: AttentionRollout) -> Estimate:
        num_locations = rollout.attention_log_probs.shape[-1]
        log_probs, locations = rollout.attention_log_probs.topk(min(self.k, num_locations))  # (R, S, T, K)
        rewards = rollout.log_prob_at(locations)  # (R, S, T, K)
        is_expectation = rollout.locations < 0
        # Samples among the K locations are part of the exact sum already.
        is_outside = ~is_expectation & (locations != rollout.locations[..., None]).all(dim=-1)
        mean_reward = (log_probs.detach().softmax(dim=-1) * rewards).sum(-1)  # (R, S, T)
        # Σ_i α_i ∂ r_i: the mean over the K locations if the sample is one of them, otherwise the sample.
        read = torch.where(is_outside | is_expectation, rollout.rewards, mean_reward)
        # Σ_i r_i ∂ α_i over the K locations; subtracting their mean reward leaves the expectation unchanged.
        advantages = (rewards - mean_reward[..., None]).detach()
        marginal = (log_probs.exp() * advantages).sum(-1).masked_fill(is_expectation, 0.0)
        later = rewards_to_go(read) - read
        return Estimate(
            pathwise=read + self.score_function_weight * marginal,  # marginal is part of the score-function term
            returns=later + is_outside * rollout.rewards,
            baseline=leave_one_out_mean(later) + is_outside * mean_reward.detach(),
        )
