"""Losses: small functions over tensors, one number per caption on average, so that none depends on the batch's size.

Xu et al. 2015, "Show, Attend and Tell"; equation numbers are theirs.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioning import attention
from captioning.decoder import Looks, Reading
from captioning.errors import CaptioningError

Coin = Literal["picture", "batch"]
EstimatorName = Literal["reinforce", "leave_one_out", "learned", "gumbel", "top_k"]


def likelihood(logits: Tensor, targets: Tensor, captions: int, smoothing: float = 0.0) -> Tensor:
    """−log p(y | a), summed over a caption's words, averaged over the captions.

    Args:
        logits: (N, V) of the real words.
        targets: (N,).
        captions: how many captions those words belong to.
        smoothing: share of the probability that is asked for all words alike.
    """
    return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing) / captions


def doubly_stochastic(weights: Tensor, captions: int) -> Tensor:
    """Σ_i (1 − Σ_t α_ti)², averaged over the captions (eq. 14): look everywhere once.

    Args:
        weights: (B, C, T, L), zero where a caption has ended.
        captions: how many of the B·C are captions; an empty row would add L.
    """
    looked = weights.sum(dim=2)  # (B, C, L)
    is_caption = looked.sum(dim=-1, keepdim=True) > 0
    return ((1 - looked).square() * is_caption).sum() / captions


def self_critical(logits: Tensor, targets: Tensor, credit: Tensor, captions: int) -> Tensor:
    """−(r − b) log p(y | a), summed over a sampled caption's words, averaged over the captions (Rennie et al. 2017).

    Args:
        logits: (N, V) of the real words.
        targets: (N,).
        credit: (N,), what each word's caption earned, less what was to be expected.
        captions: how many captions those words belong to.
    """
    return (credit * F.cross_entropy(logits, targets, reduction="none")).sum() / captions


# Hard attention. The bound L_s = Σ_s p(s | a) log p(y | s, a) ≤ log p(y | a) has too many sequences of places s to be
# summed: its gradient is estimated from sampled ones (eqs 11-12). docs/hard-attention.md derives what follows.


class Sampled(NamedTuple):
    """R captions, each read S times at sampled places; zero where a caption has ended."""

    rewards: Tensor  # (R, S, T), log p(y_t | s_≤t)
    is_word: Tensor  # (R, S, T)
    places: Tensor  # (R, S, T), the one place looked at; -1 where all count
    log_chances: Tensor  # (R, S, T, L), log α
    hidden: Tensor  # (R, S, T, H), the state that looked
    elsewhere: Callable[[Tensor], Tensor]  # places (R, S, T, K) → log p(y_t | s_<t, s_t = each of them), (R, S, T, K)

    @classmethod
    def of(
        cls, reading: Reading, samples: int, elsewhere: Callable[[Looks, Tensor], Tensor], smoothing: float = 0.0
    ) -> "Sampled":
        """From a reading of (B, C · S) captions, the S samples of a caption side by side.

        Args:
            reading: of a decoder with hard attention.
            samples: S.
            elsewhere: the decoder's, which looks a reading's words up at other places.
            smoothing: as of the likelihood, which the reward is.
        """
        looks = reading.looks
        assert looks is not None
        index = looks.where.unbind(1)
        pictures, rows, steps = reading.weights.shape[:3]

        def spread(values: Tensor) -> Tensor:  # (N, …) → (R, S, T, …)
            where_words_are = values.new_zeros(pictures, rows, steps, *values.shape[1:]).index_put(index, values)
            return where_words_are.reshape(-1, samples, *where_words_are.shape[2:])

        def reward(logits: Tensor, targets: Tensor) -> Tensor:
            return -F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)

        def chances_elsewhere(places: Tensor) -> Tensor:
            of_words = places.view(pictures, rows, steps, -1)[index]  # (N, K)
            return spread(reward(elsewhere(looks, of_words).mT, reading.targets[:, None].expand_as(of_words)))

        return cls(
            rewards=spread(reward(reading.logits, reading.targets)),
            is_word=spread(torch.ones_like(reading.targets, dtype=torch.bool)),
            places=spread(looks.places),
            log_chances=spread(looks.log_chances),
            hidden=spread(looks.state.hidden),
            elsewhere=chances_elsewhere,
        )


class Estimate(NamedTuple):
    """∂ L_s is estimated by ∂ direct + (returns − baseline) ∂ log α_{s_t}, summed over words."""

    direct: Tensor  # (R, S, T), what is differentiated as it stands
    returns: Tensor  # (R, S, T), what came of the place that was chosen
    baseline: Tensor  # (R, S, T), what was to be expected before it was chosen


def moving_average(sampled: Sampled, loss: "HardLoss") -> Estimate:
    """The paper's: every place is credited with the whole caption, less a moving average b (eqs 11-12)."""
    whole = sampled.rewards.sum(dim=-1, keepdim=True).expand_as(sampled.rewards)
    return Estimate(sampled.rewards, whole, loss.average.expand_as(whole))


def leave_one_out(sampled: Sampled, loss: "HardLoss") -> Estimate:
    """Credit with what was said from the place on, less the same of the caption's other samples (Kool et al. 2019)."""
    returns = to_go(sampled.rewards)
    return Estimate(sampled.rewards, returns, of_the_others(returns))


def learned(sampled: Sampled, loss: "HardLoss") -> Estimate:
    """Credit with what was said from the place on, less what a linear map of the state foresees of it."""
    once, each = loss.foresee(sampled.hidden.detach()).unbind(-1)  # what the rest will earn, and each word of it
    foreseen = (once + each * to_go(sampled.is_word)) * sampled.is_word
    return Estimate(sampled.rewards, to_go(sampled.rewards), foreseen)


def relaxed(sampled: Sampled, loss: "HardLoss") -> Estimate:
    """No credit at all: the gradient goes through the places themselves, by ``attention.straight_through``. Biased."""
    nothing = torch.zeros_like(sampled.rewards)
    return Estimate(sampled.rewards, nothing, nothing)


def top_k(sampled: Sampled, loss: "HardLoss") -> Estimate:
    """Each word summed exactly over its K likeliest places; only the rest, and what follows, is left to the sample.

    Rao and Blackwell's way to less variance (Liu et al. 2019), applied to each step.
    """
    log_chances, places = sampled.log_chances.topk(min(loss.candidates, sampled.log_chances.shape[-1]))
    chances = log_chances.exp()  # (R, S, T, K)
    rewards = sampled.elsewhere(places)
    expected = sampled.places < 0
    beyond = ~expected & (places != sampled.places[..., None]).all(dim=-1)  # else it has been summed already
    usual = (log_chances.detach().softmax(dim=-1) * rewards).sum(-1)  # (R, S, T)
    # Σ_i α_i ∂ r_i: what a sample among the K would have given on average, else what the sample gave.
    read = torch.where(beyond | expected, sampled.rewards, usual)
    # Σ_i r_i ∂ α_i over the K; of the others by the sample. Less what is usual, whose Σ_i ∂ α_i is 0.
    moved = (chances * (rewards - usual[..., None]).detach()).sum(-1).masked_fill(expected, 0.0)
    later = to_go(read) - read
    return Estimate(
        direct=read + loss.reward_weight * moved,  # it stands for a part of the score-function term
        returns=later + beyond * sampled.rewards,
        baseline=of_the_others(later) + beyond * usual.detach(),
    )


def to_go(rewards: Tensor) -> Tensor:
    """Σ_{t' ≥ t} r_t' of (R, S, T): a place changes the words from its own on, and none before."""
    return rewards.flip(-1).cumsum(-1).flip(-1)


def of_the_others(returns: Tensor) -> Tensor:
    """For each of the S samples (R, S, …) the mean of the others."""
    returns = returns.detach()  # a baseline that has a gradient is taken for one that learns
    return (returns.sum(dim=1, keepdim=True) - returns) / (returns.shape[1] - 1)


class Estimator(NamedTuple):
    """An entry of the table: how places are sampled, and what is made of the sample."""

    choose: Callable[..., attention.Look]  # given a generator
    estimate: Callable[[Sampled, "HardLoss"], Estimate]
    samples: int = 1  # of each caption's places, unless told otherwise
    fewest: int = 1


ESTIMATORS: dict[EstimatorName, Estimator] = {
    "reinforce": Estimator(attention.sample, moving_average),
    "leave_one_out": Estimator(attention.sample, leave_one_out, samples=4, fewest=2),
    "learned": Estimator(attention.sample, learned),
    "gumbel": Estimator(attention.straight_through, relaxed),
    "top_k": Estimator(attention.sample, top_k, samples=2, fewest=2),
}


class HardParts(NamedTuple):
    """The loss of hard attention, and what to log of it; all are single numbers."""

    total: Tensor
    score: Tensor  # the score-function term, (b − returns) log α_s
    reward: Tensor  # log p(y | s̃, a)
    baseline: Tensor
    entropy: Tensor  # H[α], a mean over words


class HardLoss(nn.Module):
    """What hard attention is trained by: −L_s, through an estimator of its gradient, and the entropy of the maps.

    Args:
        estimator: a name of the table above.
        hidden_size: H, for the baseline that learns.
        samples: S, how often each caption's places are sampled; 0 takes the estimator's own number.
        candidates: K, the places that ``top_k`` sums over.
        reward_weight: λ_r, of the score-function term; 1 makes the gradient that of the bound.
        entropy_weight: λ_e, of Σ_t H[α_t].
        expected: share of pictures whose places are replaced by their expectation.
        coin: whether it is thrown for each ``picture`` (as in the paper) or ``batch`` (as in the authors' code).
    """

    average: Tensor

    def __init__(
        self,
        estimator: EstimatorName,
        hidden_size: int,
        samples: int = 0,
        candidates: int = 4,
        reward_weight: float = 1.0,
        entropy_weight: float = 0.0,
        expected: float = 0.5,
        coin: Coin = "picture",
    ) -> None:
        super().__init__()
        if estimator not in ESTIMATORS:
            raise CaptioningError(f"unknown estimator '{estimator}'; choose {', '.join(ESTIMATORS)}")
        if coin not in ("picture", "batch"):
            raise CaptioningError(f"unknown coin '{coin}'; choose picture or batch")
        if not 0 <= expected <= 1:
            raise CaptioningError(f"expected {expected}: a share lies between 0 and 1")
        self.estimator = ESTIMATORS[estimator]
        self.samples = samples or self.estimator.samples
        if self.samples < self.estimator.fewest:
            raise CaptioningError(
                f"estimator '{estimator}' needs samples {self.estimator.fewest} or more, not {samples}"
            )
        if candidates < 1:
            raise CaptioningError(f"candidates {candidates}: take at least 1")
        self.candidates = candidates
        self.reward_weight = reward_weight
        self.entropy_weight = entropy_weight
        self.expected = expected
        self.coin = coin
        self.register_buffer("average", torch.zeros(()))  # b, kept in checkpoints
        if estimator == "learned":
            self.foresee = nn.Linear(hidden_size, 2)

    def toss(self, pictures: int, generator: torch.Generator) -> Tensor:
        """The coins: for which of the pictures (B,) places are replaced by their expectation."""
        coins = torch.rand(pictures if self.coin == "picture" else 1, generator=generator, device=generator.device)
        return (coins < self.expected).expand(pictures)

    def choose(self, expected: Tensor, generator: torch.Generator) -> attention.Choose:
        """How places are chosen in training, given the coins."""
        choose = functools.partial(self.estimator.choose, generator=generator)
        return functools.partial(attention.expect_where, expected=expected, choose=choose) if self.expected else choose

    def forward(self, sampled: Sampled, captions: int) -> "HardParts":
        estimate = self.estimator.estimate(sampled, self)
        one_place = (sampled.places >= 0) & sampled.is_word  # (R, S, T)
        log_chosen = sampled.log_chances.gather(-1, sampled.places.clamp(min=0)[..., None]).squeeze(-1)
        credit = (estimate.returns - estimate.baseline).detach() * one_place
        entropies = -(sampled.log_chances.exp() * sampled.log_chances).sum(-1)  # 0 where a caption has ended
        whole = sampled.rewards.detach().sum(-1)  # (R, S)

        count = captions * self.samples
        direct = -estimate.direct.sum() / count
        score = -(credit * log_chosen).sum() / count
        total = direct + self.reward_weight * score - self.entropy_weight * entropies.sum() / count
        if estimate.baseline.requires_grad:  # it learns, and from nothing but this
            words_left = to_go(sampled.is_word).clamp(min=1)
            missed = (estimate.returns.detach() - estimate.baseline) / words_left * one_place
            # A mean over words: gradients are clipped together, and this must not take the others' share.
            total = total + missed.square().sum() / sampled.is_word.sum()
        parts = HardParts(
            total=total,
            score=score,
            reward=whole.sum() / count,
            baseline=(estimate.baseline.detach() * sampled.is_word)[..., 0].sum() / count,
            entropy=entropies.detach().sum() / sampled.is_word.sum(),
        )
        if self.training:
            self._follow(whole, one_place[..., 0])
        return parts

    @torch.no_grad()
    def _follow(self, whole: Tensor, by_one_place: Tensor) -> None:
        """b ← 0.9 b + 0.1 log p(y | s̃, a), the mean over the captions that were read at sampled places."""
        count = by_one_place.sum()
        mean = (whole * by_one_place).sum() / count.clamp(min=1)
        self.average.copy_(torch.where(count > 0, 0.9 * self.average + 0.1 * mean, self.average))
