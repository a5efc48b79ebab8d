import functools
import itertools
from typing import get_args

import pytest
import torch

from benchmarks import estimators
from captioning.models import attention
from captioning.objectives import losses
from captioning.utils.errors import CaptioningError
from tests.test_decoder import forced


def test_likelihood_is_a_sum_over_words_and_a_mean_over_captions() -> None:
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    loss = losses.likelihood(logits, torch.tensor([0, 1, 1]), captions=2)
    assert loss.item() == pytest.approx(3 * 0.693147 / 2, rel=1e-5)


def test_label_smoothing_asks_a_little_of_every_word() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0]])
    chances = logits.log_softmax(-1)[0]
    expected = -(0.9 * chances[0] + 0.1 * chances.mean())
    torch.testing.assert_close(losses.likelihood(logits, torch.tensor([0]), 1, smoothing=0.1), expected)


def test_doubly_stochastic_is_zero_when_each_place_is_looked_at_once() -> None:
    once = torch.eye(4)[None, None]  # (1, 1, T = 4, L = 4)
    assert losses.doubly_stochastic(once, captions=1).item() == 0
    only_one = torch.tensor([[1.0, 0, 0, 0]] * 4)[None, None]
    assert losses.doubly_stochastic(only_one, captions=1).item() == 3**2 + 3


def test_doubly_stochastic_passes_over_rows_without_caption() -> None:
    weights = torch.zeros(1, 3, 4, 4)
    weights[0, 0] = torch.tensor([1.0, 0, 0, 0])
    assert losses.doubly_stochastic(weights, captions=1).item() == 3**2 + 3


def test_neither_depends_on_the_batch_size() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(6, 5), torch.randint(5, (6,))
    weights = torch.rand(2, 1, 3, 4)
    torch.testing.assert_close(
        losses.likelihood(logits.repeat(3, 1), targets.repeat(3), 6), losses.likelihood(logits, targets, 2)
    )
    torch.testing.assert_close(
        losses.doubly_stochastic(weights.repeat(3, 1, 1, 1), 6), losses.doubly_stochastic(weights, 2)
    )


# Hard attention, on a case so small that every sequence of places can be enumerated.

UNBIASED = [
    {"estimator": "reinforce"},
    {"estimator": "reinforce", "samples": 3},
    {"estimator": "learned"},
    {"estimator": "leave_one_out", "samples": 2},
    {"estimator": "leave_one_out", "samples": 4},
    {"estimator": "top_k", "candidates": 1},
    {"estimator": "top_k", "candidates": 2},
    {"estimator": "top_k", "candidates": 4},  # all places: each step is summed exactly
]
BIASED = [
    {"estimator": "gumbel"},
    {"estimator": "reinforce", "expected": 0.5},
    {"estimator": "reinforce", "reward_weight": 0.0},
]


def name(settings: dict) -> str:
    return " ".join(map(str, settings.values()))


def worst(found: estimators.Moments, truth: estimators.Gradients) -> dict[str, float]:
    """For each parameter tensor, by how many standard errors its worst element misses the exact gradient."""
    misses = {}
    for key, exact in truth.items():
        apart, error = (found.mean[key] - exact).abs(), found.error[key]
        is_stochastic = error > 1e-12  # where no randomness comes in, the mean must be exact
        exactly = torch.where(apart < 1e-9, 0.0, torch.inf)
        misses[key] = float(torch.where(is_stochastic, apart / error, exactly).max())
    return misses


# Of the case's 501 numbers the worst is expected at 3.1 standard errors; 4.8 is met by chance once in some 1,250 tests.
FAR = 4.8


@pytest.mark.parametrize("wiring", ["paper", "luong"])
@pytest.mark.parametrize("settings", UNBIASED, ids=name)
def test_mean_of_an_unbiased_estimator_is_the_exact_gradient(settings: dict, wiring: str) -> None:
    case = estimators.make_case(seed=0, places=4, wiring=wiring)
    hard = estimators.prepare(case, expected=0.0, **settings)
    found = estimators.moments(case, hard, batches=200, copies=100)
    misses = worst(found, estimators.exact(case))
    assert misses.keys() == dict(case.decoder.named_parameters()).keys()
    assert max(misses.values()) < FAR, misses


@pytest.mark.parametrize("settings", BIASED, ids=name)
def test_the_same_check_finds_a_biased_one(settings: dict) -> None:
    case = estimators.make_case(seed=0, places=4)
    truth = estimators.exact(case)
    found = estimators.moments(case, estimators.prepare(case, **{"expected": 0.0, **settings}), batches=200, copies=100)
    bias, is_stochastic = estimators.bias(found, truth)
    print(f"{name(settings)}: bias {bias:.3f} of the exact gradient's size, by chance {is_stochastic:.3f}")
    assert max(worst(found, truth).values()) > FAR
    assert bias > 3 * is_stochastic


@pytest.mark.parametrize("coin", ["picture", "batch"])
def test_with_the_coin_the_mean_is_that_of_both_losses(coin: str) -> None:
    """Also the entropy term: its gradient is taken along the sampled places, as in the paper."""
    case = estimators.make_case(seed=1, places=4)
    hard = estimators.prepare(case, estimator="reinforce", expected=0.5, entropy_weight=0.7, coin=coin)
    # A coin for a whole batch is one coin for all its copies: more batches of fewer.
    found = estimators.moments(case, hard, *((200, 100) if coin == "picture" else (1500, 4)))
    truth = estimators.exact(case, expected=0.5, entropy_weight=0.7)
    assert max(worst(found, truth).values()) < FAR


def test_exact_gradient_is_that_of_the_bound() -> None:
    """Enumerated in plain words: one sequence of places at a time, and by finite differences of the sum."""
    case = estimators.make_case(seed=2, places=3)

    def bound() -> float:
        total = 0.0
        for picture, caption in itertools.product(range(2), range(2)):
            length = int(case.lengths[picture, caption])
            for places in itertools.product(range(3), repeat=length):
                memory, state = case.decoder.start(case.annotations[picture : picture + 1])
                chance, reward = 1.0, 0.0
                for step, place in enumerate(places):
                    at = functools.partial(attention.attend_at, torch.tensor([[place]]))
                    word = case.words[picture, caption, step]
                    log_probs, state, look = case.decoder.step(word.view(1, 1), state, memory, at)
                    chance *= float(look.scores.softmax(-1)[0, 0, place])
                    reward += float(log_probs[0, 0, case.words[picture, caption, step + 1]])
                total += chance * reward
        return total / 4

    truth = estimators.exact(case)
    with torch.no_grad():
        for key, parameter in case.decoder.named_parameters():
            index = int(truth[key].abs().argmax())
            flat = parameter.view(-1)
            kept, values = flat[index].clone(), []
            for difference in (1e-5, -1e-5):
                flat[index] = kept + difference
                values.append(bound())
            flat[index] = kept
            by_difference = -(values[0] - values[1]) / 2e-5
            assert by_difference == pytest.approx(float(truth[key].flatten()[index]), rel=1e-4, abs=1e-8), key


@pytest.mark.parametrize("estimator", [key for key in losses.ESTIMATORS if key != "gumbel"])
def test_where_the_coin_chose_the_expectation_the_reinforce_term_is_exactly_zero(estimator: str) -> None:
    """Its value and its gradient; and what is left is the gradient of soft attention."""
    case = estimators.make_case(seed=3, places=4)
    hard = losses.HardLoss(estimator, hidden_size=5, expected=1.0).double()
    parts = estimators.estimate(case, hard, 1, torch.Generator().manual_seed(0))
    assert parts.score.item() == 0
    parameters = list(case.decoder.parameters())
    score = torch.autograd.grad(parts.score, parameters, retain_graph=True, allow_unused=True)
    assert all(gradient is None or not gradient.any() for gradient in score)
    gradients = dict(
        zip(dict(case.decoder.named_parameters()), torch.autograd.grad(parts.total, parameters), strict=True)
    )
    torch.testing.assert_close(gradients, estimators.exact(case, expected=1.0))
    assert hard.average == 0, "the moving average follows sampled places only"


def test_the_coin_is_tossed_for_each_picture_or_each_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    by_picture, by_batch = (losses.HardLoss("reinforce", 5, expected=0.3, coin=coin) for coin in ("picture", "batch"))
    shares = [by_picture.toss(1000, generator).float().mean().item() for _ in range(5)]
    assert all(0.25 < share < 0.35 for share in shares)
    tosses = [by_batch.toss(10, generator) for _ in range(300)]
    assert all(len(set(toss.tolist())) == 1 for toss in tosses)
    assert 0.2 < sum(toss[0].item() for toss in tosses) / 300 < 0.4


@pytest.mark.parametrize("estimator", losses.ESTIMATORS)
def test_hard_loss_does_not_depend_on_the_batch_size(estimator: str) -> None:
    """The same places for each copy of the batch give the same loss, whatever λ_r and λ_e."""
    case = estimators.make_case(seed=4, places=4)
    hard = losses.HardLoss(estimator, 5, reward_weight=0.7, entropy_weight=0.3, expected=0.0).double().eval()
    hard.average.fill_(-3.0)
    samples = hard.samples
    words, lengths = (part.repeat_interleave(samples, 1) for part in (case.words, case.lengths))
    places = torch.randint(4, (2, 2 * samples, 3), generator=torch.Generator().manual_seed(0))

    def loss(copies: int) -> torch.Tensor:
        annotations, ids, counts, where = (
            part.repeat(copies, *(1 for _ in part.shape[1:])) for part in (case.annotations, words, lengths, places)
        )
        reading = case.decoder(annotations, ids, counts, forced(where))
        return hard(losses.Sampled.of(reading, samples, case.decoder.elsewhere), 4 * copies).total

    torch.testing.assert_close(loss(1), loss(3))


def test_the_moving_average_follows_the_reward() -> None:
    case = estimators.make_case(seed=5, places=4)
    hard = losses.HardLoss("reinforce", 5, expected=0.0).double()
    generator = torch.Generator().manual_seed(0)
    expected = 0.0
    for _ in range(3):
        parts = estimators.estimate(case, hard, 1, generator)
        assert parts.baseline.item() == pytest.approx(expected), "of the steps before: else it would know the sample"
        expected = 0.9 * expected + 0.1 * parts.reward.item()
    assert hard.state_dict()["average"].item() == pytest.approx(expected)


def test_returns_are_of_the_words_to_come_and_baselines_of_the_others() -> None:
    rewards = torch.tensor([[[1.0, 2.0, 4.0], [3.0, 0.0, 0.0], [5.0, 1.0, 1.0]]])
    assert losses.to_go(rewards).tolist() == [[[7, 6, 4], [3, 0, 0], [7, 2, 1]]]
    assert losses.of_the_others(rewards).tolist() == [[[4, 0.5, 0.5], [3, 1.5, 2.5], [2, 1, 2]]]


def test_without_reward_weight_attention_learns_nothing_but_from_the_expectation() -> None:
    """λ_r weighs all of the score-function term, the part that top_k sums included."""
    case = estimators.make_case(seed=6, places=4)
    for estimator in ("reinforce", "leave_one_out", "learned", "top_k"):
        hard = losses.HardLoss(estimator, 5, candidates=4, reward_weight=0.0, expected=0.0).double()
        total = estimators.estimate(case, hard, 3, torch.Generator().manual_seed(0)).total
        (gradient,) = torch.autograd.grad(total, case.decoder.attention.score.query.weight)
        assert not gradient.any(), estimator


def test_the_table_is_what_can_be_chosen() -> None:
    assert tuple(losses.ESTIMATORS) == get_args(losses.EstimatorName)


def test_only_estimators_that_exist_and_settings_that_fit() -> None:
    for settings, message in (
        ({"estimator": "x"}, "unknown estimator 'x'; choose reinforce, leave_one_out"),
        ({"estimator": "leave_one_out", "samples": 1}, "needs samples 2 or more, not 1"),
        ({"estimator": "reinforce", "coin": "x"}, "unknown coin 'x'"),
        ({"estimator": "reinforce", "expected": 1.5}, "expected 1.5: a share"),
        ({"estimator": "top_k", "candidates": 0}, "candidates 0"),
    ):
        with pytest.raises(CaptioningError, match=message):
            losses.HardLoss(hidden_size=5, **settings)
