"""Gradient estimators of the variational bound of hard attention.

The bound L_s = Σ_s p(s | a) log p(y | s, a) ≤ log p(y | a) (eq. 10) sums over all location sequences s, which are too
many. Its gradient is estimated from sampled sequences (eqs 11-12). docs/hard-attention.md derives the estimators.
Equation numbers: Xu et al. 2015, "Show, Attend and Tell".

Shapes: R captions, S sampled location sequences per caption, T tokens, L locations, H hidden size.
"""

import functools
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from captioning.models.attention import AttentionFn, attend_sample, attend_straight_through_gumbel
from captioning.objectives.base import check_minimum
from captioning.objectives.location_samples import LocationSamples
from captioning.objectives.moving_average import MovingAverage
from captioning.utils.errors import CaptioningError


class Estimate(NamedTuple):
    """∂ L_s ≈ ∂ pathwise + (returns − baseline) ∂ log α_{s_t} + ∂ marginal, summed over tokens.

    The second and the third part are the score-function term, which λ_r multiplies.
    """

    pathwise: Tensor  # (R, S, T), differentiated as it is
    returns: Tensor  # (R, S, T), reward attributed to the sampled location
    baseline: Tensor  # (R, S, T), independent of the sampled location; equal to the returns for no update
    marginal: Tensor | None = None  # (R, S, T), part of the score-function term that is summed over locations exactly
    baseline_loss: Tensor | None = None  # scalar, trains a learned baseline


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
        """Return the attention function that samples the locations."""
        return functools.partial(attend_sample, generator=generator)

    @abstractmethod
    def estimate(self, samples: LocationSamples) -> Estimate:
        """Compute the terms of the gradient estimate for captions with sampled locations."""

    def update(self, samples: LocationSamples) -> None:
        """Update state after a training step."""


class Reinforce(GradientEstimator):
    """The estimator of the paper: the return of each location is log p(y | s, a) of the whole caption, the baseline a
    moving average of it (eqs 11-12).

    The average starts at the mean return of the first batch, whose score-function term is zero: a baseline of 0 would
    lower the probability of every sampled location until the average reaches the reward.

    Args:
        decay: factor of the old value in b ← decay · b + (1 − decay) · log p(y | s, a).
        num_samples: S, number of sampled location sequences per caption.
        score_function_weight: λ_r; 1 gives the gradient of the bound.
    """

    def __init__(self, decay: float = 0.9, num_samples: int = 1, score_function_weight: float = 1.0) -> None:
        super().__init__(num_samples, score_function_weight)
        if not 0 <= decay < 1:
            raise CaptioningError(f"Reinforce.decay must be in [0, 1), got {decay}")
        self.average_return = MovingAverage(decay)  # b

    def estimate(self, samples: LocationSamples) -> Estimate:
        returns = samples.rewards.sum(dim=-1, keepdim=True).expand_as(samples.rewards)
        is_initialized = self.average_return.num_updates > 0
        return Estimate(samples.rewards, returns, torch.where(is_initialized, self.average_return.value, returns))

    def update(self, samples: LocationSamples) -> None:
        """Move the baseline toward the mean over the captions with sampled locations."""
        self.average_return.update(samples.rewards.sum(-1), samples.is_sampled[..., 0])


class LeaveOneOut(GradientEstimator):
    """REINFORCE leave-one-out (Kool et al. 2019): the baseline is the mean return of the caption's other samples.

    Args:
        num_samples: S, number of sampled location sequences per caption, at least 2.
        score_function_weight: λ_r; 1 gives the gradient of the bound.
    """

    min_samples = 2

    def __init__(self, num_samples: int = 4, score_function_weight: float = 1.0) -> None:
        super().__init__(num_samples, score_function_weight)

    def estimate(self, samples: LocationSamples) -> Estimate:
        returns = samples.sum_affected(samples.rewards)
        return Estimate(samples.rewards, returns, leave_one_out_mean(returns))


class LearnedBaseline(GradientEstimator):
    """REINFORCE with rewards-to-go and a learned baseline (a linear value function).

    The baseline of a token with hidden state h is b(h) + (r̄ + w(h)) · n: n is the number of tokens from this one to
    the end, r̄ the moving average of the reward per token, and b and w are linear functions of h that are fitted to
    the returns.

    Args:
        num_samples: S, number of sampled location sequences per caption.
        score_function_weight: λ_r; 1 gives the gradient of the bound.
        warmup_steps: number of training steps, from the first with sampled locations, in which only the baseline is
            fitted and the score-function term is zero.
    """

    value_head: nn.Linear

    def __init__(self, num_samples: int = 1, score_function_weight: float = 1.0, warmup_steps: int = 50) -> None:
        super().__init__(num_samples, score_function_weight)
        check_minimum("LearnedBaseline.warmup_steps", warmup_steps, 0)
        self.warmup_steps = warmup_steps
        self.average_reward = MovingAverage(decay=0.9)

    def setup(self, hidden_size: int) -> None:
        self.value_head = nn.Linear(hidden_size, 2)

    def estimate(self, samples: LocationSamples) -> Estimate:
        hidden = samples.arrange(samples.trace.state.hidden.detach())  # (R, S, T, H)
        offset, per_token = self.value_head(hidden).unbind(-1)  # (R, S, T) each
        tokens_left = samples.sum_affected(samples.token_mask.long())  # including the current token
        baseline = (offset + (per_token + self.average_reward.value) * tokens_left) * samples.token_mask
        returns = samples.sum_affected(samples.rewards)
        errors = (returns.detach() - baseline) / tokens_left.clamp(min=1) * samples.is_sampled
        # A mean over tokens: the gradient norm is clipped over all parameters, and the head must not dominate it.
        baseline_loss = errors.square().sum() / samples.token_mask.sum()
        is_fitted = self.average_reward.num_updates >= self.warmup_steps
        return Estimate(
            samples.rewards, returns, torch.where(is_fitted, baseline, returns), baseline_loss=baseline_loss
        )

    def update(self, samples: LocationSamples) -> None:
        self.average_reward.update(samples.rewards, samples.is_sampled)


class StraightThroughGumbel(GradientEstimator):
    """Straight-through Gumbel-softmax (Jang et al. 2017): the gradient passes through the relaxed sample. Biased.

    Args:
        num_samples: S, number of sampled location sequences per caption.
    """

    def __init__(self, num_samples: int = 1) -> None:
        super().__init__(num_samples, score_function_weight=0.0)

    def attention_fn(self, generator: torch.Generator) -> AttentionFn:
        return functools.partial(attend_straight_through_gumbel, generator=generator)

    def estimate(self, samples: LocationSamples) -> Estimate:
        zeros = torch.zeros_like(samples.rewards)
        return Estimate(samples.rewards, zeros, zeros)


class TopKMarginalized(GradientEstimator):
    """Rao-Blackwellized REINFORCE (Liu et al. 2019).

    At each time step the expectation over the k most probable locations is computed exactly. The sampled location
    estimates the rest of the sum, and the effect on later tokens.

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

    def estimate(self, samples: LocationSamples) -> Estimate:
        attention_log_probs = samples.arrange(samples.trace.attention_log_probs)  # (R, S, T, L)
        log_probs, locations = attention_log_probs.topk(min(self.k, attention_log_probs.shape[-1]))  # (R, S, T, K)
        rewards = samples.log_prob_at(locations)  # (R, S, T, K)
        is_expectation = samples.locations < 0
        # Samples among the K locations are part of the exact sum already.
        is_outside = ~is_expectation & (locations != samples.locations[..., None]).all(dim=-1)
        mean_reward = (log_probs.detach().softmax(dim=-1) * rewards).sum(-1)  # (R, S, T)
        # Σ_i α_i ∂ r_i: the mean over the K locations if the sample is one of them, otherwise the sample.
        pathwise = torch.where(is_outside | is_expectation, samples.rewards, mean_reward)
        # Σ_i r_i ∂ α_i over the K locations; subtracting their mean reward leaves the expectation unchanged.
        advantages = (rewards - mean_reward[..., None]).detach()
        marginal = (log_probs.exp() * advantages).sum(-1).masked_fill(is_expectation, 0.0)
        later = samples.sum_affected(pathwise) - pathwise
        return Estimate(
            pathwise=pathwise,
            returns=later + is_outside * samples.rewards,
            baseline=leave_one_out_mean(later) + is_outside * mean_reward.detach(),
            marginal=marginal,
        )
