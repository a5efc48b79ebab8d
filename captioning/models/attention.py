"""Attention scores, and soft and hard attention over image locations.

Scores: Bahdanau et al. 2015 (``additive``), Luong et al. 2015 (``dot``, ``general``, ``location``) and Vaswani et al.
2017 (``scaled_dot``). Soft and hard attention: Xu et al. 2015, "Show, Attend and Tell"; equation numbers refer to it.
Sparse activations of soft attention: Martins & Astudillo 2016 (``sparsemax``) and Peters et al. 2019 (``entmax15``).

Shapes: B images, C captions (or beams) per image, L locations, D feature size, H hidden size, A attention size.

    features (B, L, D)    keys (B, L, A)    hidden (B, C, H)    scores, weights (B, C, L)    context (B, C, D)

The captions of an image share its features and keys, which are never copied. Keys do not depend on the time step and
are computed once per image.
"""

import functools
import importlib
import math
from typing import Literal, NamedTuple, Protocol, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioning.models.additive_score import additive_score
from captioning.models.linear import Linear
from captioning.utils.errors import CaptioningError

AttentionScoreType = Literal["additive", "dot", "general", "scaled_dot", "location"]
AttentionType = Literal["soft", "hard"]
AttentionActivation = Literal["softmax", "sparsemax", "entmax15"]
AttentionMode = Literal["expectation", "argmax", "sample"]


class AdditiveScore(nn.Module):
    """e_i = vᵀ tanh(W_a a_i + W_h h)."""

    def __init__(self, feature_size: int, hidden_size: int, attention_size: int) -> None:
        super().__init__()
        self.key_proj = Linear(feature_size, attention_size)
        self.query_proj = Linear(hidden_size, attention_size, bias=False)
        self.energy_proj = Linear(attention_size, 1, bias=False)

    def project_keys(self, features: Tensor) -> Tensor:
        return self.key_proj(features)  # (B, L, A)

    def forward(self, hidden: Tensor, keys: Tensor) -> Tensor:
        return additive_score(keys, self.query_proj(hidden), self.energy_proj.weight[0])  # (B, C, L)


class DotScore(nn.Module):
    """e_i = a_iᵀ h. Requires D = H."""

    def __init__(self, feature_size: int, hidden_size: int) -> None:
        super().__init__()
        if feature_size != hidden_size:
            raise CaptioningError(
                f"attention_score 'dot' requires hidden_size equal to the feature size {feature_size}, but hidden_size "
                f"is {hidden_size}; change hidden_size or projection_size, or use 'general'"
            )

    def project_keys(self, features: Tensor) -> Tensor:
        return features  # (B, L, D)

    def forward(self, hidden: Tensor, keys: Tensor) -> Tensor:
        return hidden @ keys.transpose(1, 2)  # (B, C, L)


class GeneralScore(nn.Module):
    """e_i = a_iᵀ W h, with a_iᵀ W computed once per image."""

    def __init__(self, feature_size: int, hidden_size: int) -> None:
        super().__init__()
        self.key_proj = Linear(feature_size, hidden_size, bias=False)

    def project_keys(self, features: Tensor) -> Tensor:
        return self.key_proj(features)  # (B, L, H)

    def forward(self, hidden: Tensor, keys: Tensor) -> Tensor:
        return hidden @ keys.transpose(1, 2)  # (B, C, L)


class ScaledDotScore(nn.Module):
    """e_i = (W_a a_i)ᵀ (W_h h) / √A."""

    def __init__(self, feature_size: int, hidden_size: int, attention_size: int) -> None:
        super().__init__()
        self.key_proj = Linear(feature_size, attention_size)
        self.query_proj = Linear(hidden_size, attention_size)
        # Small queries make the initial attention uniform. With the default initialization the products of wide vectors
        # saturate the softmax at an arbitrary location.
        nn.init.normal_(self.query_proj.weight, std=0.005)
        nn.init.zeros_(self.query_proj.bias)
        self.scale = 1 / math.sqrt(attention_size)

    def project_keys(self, features: Tensor) -> Tensor:
        return self.key_proj(features) * self.scale  # (B, L, A), scaled here once per image instead of at every step

    def forward(self, hidden: Tensor, keys: Tensor) -> Tensor:
        return self.query_proj(hidden) @ keys.transpose(1, 2)  # (B, C, L)


class LocationScore(nn.Module):
    """e = W h. Depends on the hidden state only, not on the features."""

    def __init__(self, hidden_size: int, num_locations: int) -> None:
        super().__init__()
        self.query_proj = Linear(hidden_size, num_locations)

    def project_keys(self, features: Tensor) -> Tensor:
        return features  # (B, L, D), unused by forward()

    def forward(self, hidden: Tensor, keys: Tensor) -> Tensor:
        return self.query_proj(hidden)  # (B, C, L)


AttentionScore = AdditiveScore | DotScore | GeneralScore | ScaledDotScore | LocationScore


def build_attention_score(
    name: AttentionScoreType, feature_size: int, hidden_size: int, attention_size: int, num_locations: int
) -> AttentionScore:
    """Build the score function ``name`` with the sizes that it uses."""
    match name:
        case "additive":
            return AdditiveScore(feature_size, hidden_size, attention_size)
        case "dot":
            return DotScore(feature_size, hidden_size)
        case "general":
            return GeneralScore(feature_size, hidden_size)
        case "scaled_dot":
            return ScaledDotScore(feature_size, hidden_size, attention_size)
        case "location":
            return LocationScore(hidden_size, num_locations)


class AttentionOutput(NamedTuple):
    """Result of one attention step."""

    context: Tensor  # (B, C, D), z_t
    weights: Tensor  # (B, C, L), sum to 1 over locations; one-hot for hard attention
    scores: Tensor  # (B, C, L), α = softmax(scores), or another activation of soft attention
    locations: Tensor  # (B, C), index of the attended location s_t; -1 if all locations contribute
    context_gate: Tensor | None = None  # (B, C), mean of β_t over channels; None without a gate


class AttentionFn(Protocol):
    """Computes the attention output from scores (B, C, L) and features (B, L, D)."""

    def __call__(self, scores: Tensor, features: Tensor) -> AttentionOutput: ...


def attention_weights(scores: Tensor, activation: AttentionActivation) -> Tensor:
    """Scores (…, L) -> attention weights (…, L), which sum to 1.

    ``sparsemax`` and ``entmax15`` set the weights of low scores to exactly zero. These scores receive no gradient.
    """
    if activation == "softmax":
        return scores.softmax(dim=-1)
    sparse_activation = getattr(importlib.import_module("entmax"), activation)  # the default needs no import
    return sparse_activation(_at_least_float32(scores), dim=-1).to(scores.dtype)


def attend_expectation(
    scores: Tensor, features: Tensor, activation: AttentionActivation = "softmax"
) -> AttentionOutput:
    """z = Σ_i α_i a_i, the expectation of the context over locations (eq. 13)."""
    weights = attention_weights(scores, activation)
    return AttentionOutput(weights @ features, weights, scores, _no_single_location(scores))


def attend_uniform(scores: Tensor, features: Tensor) -> AttentionOutput:
    """z = Σ_i a_i / L, independent of the scores. Control condition of the faithfulness test."""
    return attend_expectation(torch.zeros_like(scores), features)


def attend_at(locations: Tensor, scores: Tensor, features: Tensor) -> AttentionOutput:
    """z = a_s, the features at the given locations (B, C)."""
    # embedding() copies whole rows, several times as fast as gather(), which has an index for each element.
    rows = locations + torch.arange(features.shape[0], device=features.device)[:, None] * features.shape[1]
    context = F.embedding(rows, features.flatten(0, 1))  # (B, C, D)
    weights = torch.zeros_like(scores).scatter(-1, locations[..., None], 1.0)
    return AttentionOutput(context, weights, scores, locations)


def attend_argmax(scores: Tensor, features: Tensor) -> AttentionOutput:
    """z = a_s with s = argmax_i α_i."""
    return attend_at(scores.argmax(dim=-1), scores, features)


def attend_sample(scores: Tensor, features: Tensor, generator: torch.Generator) -> AttentionOutput:
    """z = a_s with s ~ Categorical(α) (eqs 8-9)."""
    probs = scores.detach().softmax(dim=-1)
    locations = torch.multinomial(probs.flatten(0, 1), 1, generator=generator).view(scores.shape[:2])
    return attend_at(locations, scores, features)


def attend_straight_through_gumbel(scores: Tensor, features: Tensor, generator: torch.Generator) -> AttentionOutput:
    """s ~ Categorical(α) by the Gumbel-max trick, with the gradient of the softmax relaxation (Jang et al. 2017)."""
    negative_gumbel = torch.empty_like(scores).exponential_(generator=generator).log()
    perturbed = scores - negative_gumbel
    relaxed = perturbed.softmax(dim=-1)
    one_hot = torch.zeros_like(relaxed).scatter(-1, perturbed.argmax(dim=-1, keepdim=True), 1.0)
    weights = one_hot + relaxed - relaxed.detach()
    return AttentionOutput(weights @ features, weights, scores, _no_single_location(scores))


def attend_mixed(
    scores: Tensor, features: Tensor, expectation_mask: Tensor, attention_fn: AttentionFn
) -> AttentionOutput:
    """The expectation for images where ``expectation_mask`` (B,) is true, else ``attention_fn`` (section 4.1).

    The mask may be longer than the batch: teacher forcing drops finished images from the end of the batch.
    """
    mask = expectation_mask[: len(scores), None]  # (B, 1)
    soft, hard = attend_expectation(scores, features), attention_fn(scores, features)
    context = torch.where(mask[..., None], soft.context, hard.context)
    weights = torch.where(mask[..., None], soft.weights, hard.weights)
    return AttentionOutput(context, weights, scores, hard.locations.masked_fill(mask, -1))


def _at_least_float32(scores: Tensor) -> Tensor:
    """Half precision is too imprecise for sampling, for log α and for the threshold of a sparse activation."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def _no_single_location(scores: Tensor) -> Tensor:
    return torch.full(scores.shape[:2], -1, device=scores.device)


def check_attention_mode(name: AttentionMode | None, is_hard: bool) -> None:
    """Raise CaptioningError if the attention mode does not exist or does not apply to the model."""
    if name not in (None, *get_args(AttentionMode)):
        raise CaptioningError(f"unknown attention_mode '{name}'; choose one of {', '.join(get_args(AttentionMode))}")
    if not is_hard and name not in (None, "expectation"):
        raise CaptioningError(
            f"attention_mode '{name}' requires hard attention, but this model uses soft attention; "
            "omit attention_mode or use 'expectation'"
        )


def make_attention_fn(name: AttentionMode | None, generator: torch.Generator) -> AttentionFn | None:
    """The attention function of an attention mode. None selects the default of the attention module."""
    match name:
        case None:
            return None
        case "expectation":
            return attend_expectation
        case "argmax":
            return attend_argmax
        case "sample":
            return functools.partial(attend_sample, generator=generator)


class SoftAttention(nn.Module):
    """Deterministic soft attention: α = softmax(e), z = Σ_i α_i a_i (eqs 4-5 and 13).

    A sparse activation can replace the softmax.
    """

    def __init__(self, score_fn: AttentionScore, activation: AttentionActivation = "softmax") -> None:
        super().__init__()
        self.score_fn = score_fn
        self.activation = activation

    def forward(
        self, hidden: Tensor, keys: Tensor, features: Tensor, attention_fn: AttentionFn | None = None
    ) -> AttentionOutput:
        if attention_fn not in (None, attend_expectation, attend_uniform):
            raise CaptioningError(
                "this model uses soft attention, which supports only attention_mode 'expectation'; "
                "'argmax' and 'sample' require hard attention"
            )
        scores = self.score_fn(hidden, keys)
        if attention_fn is attend_uniform:
            return attend_uniform(scores, features)
        return attend_expectation(scores, features, self.activation)


class HardAttention(nn.Module):
    """Stochastic hard attention: s ~ Categorical(α) with α = softmax(e / temperature), z = a_s (eqs 8-9).

    The default ``attention_fn`` is :func:`attend_argmax`.
    """

    def __init__(self, score_fn: AttentionScore, temperature: float) -> None:
        super().__init__()
        self.score_fn = score_fn
        self.temperature = temperature

    def forward(
        self, hidden: Tensor, keys: Tensor, features: Tensor, attention_fn: AttentionFn | None = None
    ) -> AttentionOutput:
        scores = _at_least_float32(self.score_fn(hidden, keys))
        return (attention_fn or attend_argmax)(scores / self.temperature, features)
