"""Where to look: scores of places against the decoder's state, and attention that turns them into a context.

Score functions after Bahdanau et al. 2015 (``additive``), Luong et al. 2015 (``dot``, ``general``, ``location``) and
Vaswani et al. 2017 (``scaled_dot``); soft and hard attention after Xu et al. 2015. Everything works on B pictures with
C captions (or beams) each: the captions of a picture share its annotations and keys, which are never copied.

    annotations (B, L, D)    keys (B, L, A)    hidden (B, C, H)    scores, weights (B, C, L)    context (B, C, D)

A score's ``keys`` are what it needs of the annotations, the same at every step: they are computed once per picture.
"""

import functools
import math
from typing import Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor, nn

from captioning.errors import CaptioningError

ScoreName = Literal["additive", "dot", "general", "scaled_dot", "location"]
AttentionName = Literal["soft", "hard"]
LookName = Literal["expect", "argmax", "sample"]


class Additive(nn.Module):
    """e_i = vᵀ tanh(W_a a_i + W_h h)."""

    def __init__(self, annotation_size: int, hidden_size: int, attention_size: int) -> None:
        super().__init__()
        self.key = nn.Linear(annotation_size, attention_size)
        self.query = nn.Linear(hidden_size, attention_size, bias=False)
        self.score = nn.Linear(attention_size, 1, bias=False)

    def keys(self, annotations: Tensor) -> Tensor:
        return self.key(annotations)

    def forward(self, hidden: Tensor, keys: Tensor) -> Tensor:
        both = keys[:, None] + self.query(hidden)[:, :, None]  # (B, C, L, A)
        return self.score(both.tanh()).squeeze(-1)


class Dot(nn.Module):
    """e_i = a_iᵀ h."""

    def __init__(self, annotation_size: int, hidden_size: int) -> None:
        super().__init__()
        if annotation_size != hidden_size:
            raise CaptioningError(
                f"score 'dot' needs hidden_size {hidden_size} equal to the encoder's width {annotation_size}; "
                "set hidden_size so, or take 'general'"
            )

    def keys(self, annotations: Tensor) -> Tensor:
        return annotations

    def forward(self, hidden: Tensor, keys: Tensor) -> Tensor:
        return hidden @ keys.mT


class General(nn.Module):
    """e_i = a_iᵀ W h, with a_iᵀ W computed once per picture."""

    def __init__(self, annotation_size: int, hidden_size: int) -> None:
        super().__init__()
        self.key = nn.Linear(annotation_size, hidden_size, bias=False)

    def keys(self, annotations: Tensor) -> Tensor:
        return self.key(annotations)

    def forward(self, hidden: Tensor, keys: Tensor) -> Tensor:
        return hidden @ keys.mT


class ScaledDot(nn.Module):
    """e_i = (W_a a_i)ᵀ (W_h h) / √A."""

    def __init__(self, annotation_size: int, hidden_size: int, attention_size: int) -> None:
        super().__init__()
        self.key = nn.Linear(annotation_size, attention_size)
        self.query = nn.Linear(hidden_size, attention_size)
        # Begin by looking everywhere alike: products of wide vectors would fix the look on some place from the start.
        nn.init.normal_(self.query.weight, std=0.005)
        nn.init.zeros_(self.query.bias)
        self.scale = 1 / math.sqrt(attention_size)

    def keys(self, annotations: Tensor) -> Tensor:
        return self.key(annotations) * self.scale  # here it is done once per picture

    def forward(self, hidden: Tensor, keys: Tensor) -> Tensor:
        return self.query(hidden) @ keys.mT


class Location(nn.Module):
    """e = W h: the state alone says where to look, whatever is there."""

    def __init__(self, hidden_size: int, places: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, places)

    def keys(self, annotations: Tensor) -> Tensor:
        return annotations

    def forward(self, hidden: Tensor, keys: Tensor) -> Tensor:
        return self.query(hidden)


Score = Additive | Dot | General | ScaledDot | Location


def make_score(name: ScoreName, annotation_size: int, hidden_size: int, attention_size: int, places: int) -> Score:
    match name:
        case "additive":
            return Additive(annotation_size, hidden_size, attention_size)
        case "dot":
            return Dot(annotation_size, hidden_size)
        case "general":
            return General(annotation_size, hidden_size)
        case "scaled_dot":
            return ScaledDot(annotation_size, hidden_size, attention_size)
        case "location":
            return Location(hidden_size, places)
    raise CaptioningError(f"unknown score '{name}'; choose additive, dot, general, scaled_dot or location")


class Look(NamedTuple):
    """One look at the picture: what was seen, and how much each place counted."""

    context: Tensor  # (B, C, D)
    weights: Tensor  # (B, C, L), summing to 1 over places; of a hard look 1 at one place
    scores: Tensor  # (B, C, L), α is their softmax
    places: Tensor  # (B, C), the one place looked at; -1 where all count


class Choose(Protocol):
    """How a look comes from the scores of the places (B, C, L) and their annotations (B, L, D)."""

    def __call__(self, scores: Tensor, annotations: Tensor) -> Look: ...


def expect(scores: Tensor, annotations: Tensor) -> Look:
    """z = Σ_i α_i a_i, the expectation over places (Xu et al., eq. 13)."""
    weights = scores.softmax(dim=-1)
    return Look(weights @ annotations, weights, scores, _all_count(scores))


def uniform(scores: Tensor, annotations: Tensor) -> Look:
    """z = Σ_i a_i / L, all places alike whatever their scores: the control that maps are compared with."""
    return expect(torch.zeros_like(scores), annotations)


def look_at(places: Tensor, scores: Tensor, annotations: Tensor) -> Look:
    """z = a_s, the annotation of one place (B, C) and nothing of the others."""
    index = places[..., None]  # (B, C, 1)
    context = annotations.gather(1, index.expand(-1, -1, annotations.shape[-1]))
    return Look(context, torch.zeros_like(scores).scatter(-1, index, 1.0), scores, places)


def argmax(scores: Tensor, annotations: Tensor) -> Look:
    """The likeliest place."""
    return look_at(scores.argmax(dim=-1), scores, annotations)


def sample(scores: Tensor, annotations: Tensor, generator: torch.Generator) -> Look:
    """s ~ Categorical(α)."""
    chances = scores.detach().softmax(dim=-1)
    places = torch.multinomial(chances.flatten(0, 1), 1, generator=generator).view(scores.shape[:2])
    return look_at(places, scores, annotations)


def straight_through(scores: Tensor, annotations: Tensor, generator: torch.Generator) -> Look:
    """s ~ Categorical(α) by Gumbel's trick; backwards as if it had been a softmax (Jang et al. 2017)."""
    minus_gumbel = torch.empty_like(scores).exponential_(generator=generator).log()
    perturbed = scores - minus_gumbel
    relaxed = perturbed.softmax(dim=-1)
    place = torch.zeros_like(relaxed).scatter(-1, perturbed.argmax(dim=-1, keepdim=True), 1.0)
    weights = place + relaxed - relaxed.detach()
    return Look(weights @ annotations, weights, scores, _all_count(scores))


def expect_where(scores: Tensor, annotations: Tensor, expected: Tensor, choose: Choose) -> Look:
    """The expectation for the pictures (B,) whose coin fell so, a choice for the others (Xu et al., section 4.1)."""
    expected = expected[: len(scores), None]  # the pictures that ended first, and are no longer here, were the last
    soft, hard = expect(scores, annotations), choose(scores, annotations)
    context = torch.where(expected[..., None], soft.context, hard.context)
    weights = torch.where(expected[..., None], soft.weights, hard.weights)
    return Look(context, weights, scores, hard.places.masked_fill(expected, -1))


def _all_count(scores: Tensor) -> Tensor:
    return torch.full(scores.shape[:2], -1, device=scores.device)


def check_look(name: LookName | None, hard: bool) -> None:
    """Refuse a look that there is not, or that a model cannot do, before anything has been done for nothing."""
    if name not in (None, *get_args(LookName)):
        raise CaptioningError(f"unknown look '{name}'; choose {', '.join(get_args(LookName))}")
    if not hard and name not in (None, "expect"):
        raise CaptioningError(
            f"look '{name}' needs hard attention, and this model's attention is soft; leave it out, or take 'expect'"
        )


def way_to_look(name: LookName | None, generator: torch.Generator) -> Choose | None:
    """How a hard model looks when it captions; ``sample`` draws from the generator, None is the attention's own way."""
    match name:
        case None:
            return None
        case "expect":
            return expect
        case "argmax":
            return argmax
        case "sample":
            return functools.partial(sample, generator=generator)


class SoftAttention(nn.Module):
    """Looks everywhere at once, at each place as much as its score says."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def forward(self, hidden: Tensor, keys: Tensor, annotations: Tensor, choose: Choose | None = None) -> Look:
        if choose not in (None, expect, uniform):
            raise CaptioningError(
                "this model's attention is soft: 'expect' is its only look, 'argmax' and 'sample' are hard"
            )
        return (choose or expect)(self.score(hidden, keys), annotations)


class HardAttention(nn.Module):
    """Looks at one place at a time, s ~ Categorical(α), α = softmax(e / temperature); unless told, at the likeliest."""

    def __init__(self, score: Score, temperature: float) -> None:
        super().__init__()
        if temperature <= 0:
            raise CaptioningError(f"temperature {temperature}: must be more than 0")
        self.score = score
        self.temperature = temperature

    def forward(self, hidden: Tensor, keys: Tensor, annotations: Tensor, choose: Choose | None = None) -> Look:
        scores = self.score(hidden, keys)
        if scores.dtype in (torch.float16, torch.bfloat16):  # too coarse to draw from, and for log α
            scores = scores.float()
        return (choose or argmax)(scores / self.temperature, annotations)
