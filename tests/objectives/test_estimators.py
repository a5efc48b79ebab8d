"""Gradient estimators of hard attention, in a case so small that every location sequence can be enumerated."""

import functools
import itertools
from collections.abc import Callable

import pytest
import torch

from benchmarks import estimators as exact_case
from benchmarks.estimators import Gradients, Moments, estimate, exact_gradient, make_case, moments, prepare
from captioning.models.attention import attend_at
from captioning.objectives import (
    LearnedBaseline,
    LeaveOneOut,
    Reinforce,
    StraightThroughGumbel,
    TopKMarginalized,
    VariationalBound,
)
from captioning.objectives.estimators import GradientEstimator, leave_one_out_mean
from captioning.objectives.location_samples import LocationSamples, attend_sequence, rewards_to_go
from captioning.utils.errors import CaptioningError

MakeEstimator = Callable[[], GradientEstimator]
UNBIASED: dict[str, MakeEstimator] = {
    "reinforce": Reinforce,
    "reinforce-3": functools.partial(Reinforce, num_samples=3),
    "learned": LearnedBaseline,
    "leave-one-out-2": functools.partial(LeaveOneOut, 2),
    "leave-one-out-4": functools.partial(LeaveOneOut, 4),
    "top-1": functools.partial(TopKMarginalized, 1),
    "top-2": functools.partial(TopKMarginalized, 2),
    "top-4": functools.partial(TopKMarginalized, 4),  # all locations: each step is summed exactly
}
BIASED: dict[str, Callable[[], VariationalBound]] = {
    "gumbel": lambda: VariationalBound(StraightThroughGumbel(), expectation_prob=0.0),
    "expectation": lambda: VariationalBound(Reinforce(), expectation_prob=0.5),
    "pathwise only": lambda: VariationalBound(Reinforce(score_function_weight=0.0), expectation_prob=0.0),
}
ESTIMATORS = (Reinforce, LeaveOneOut, LearnedBaseline, StraightThroughGumbel, TopKMarginalized)

# Of the 501 parameters of the case the largest error is expected at 3.1 standard errors; 4.8 is exceeded by
# chance once in some 1,250 tests.
MAX_STANDARD_ERRORS = 4.8


def largest_errors(estimated: Moments, exact: Gradients) -> dict[str, float]:
    """Per parameter tensor, the largest distance of an element from the exact gradient in standard errors."""
    errors = {}
    for name, gradient in exact.items():
        distance, standard_error = (estimated.mean[name] - gradient).abs(), estimated.standard_error[name]
        is_stochastic = standard_error > 1e-12  # without randomness the mean must be exact
        if_exact = torch.where(distance < 1e-9, 0.0, torch.inf)
        errors[name] = float(torch.where(is_stochastic, distance / standard_error, if_exact).max())
    return errors


@pytest.mark.parametrize("architecture", ["show_attend_tell", "luong"])
@pytest.mark.parametrize("name", UNBIASED)
def test_mean_of_an_unbiased_estimator_is_the_exact_gradient(name: str, architecture: str) -> None:
    case = make_case(seed=0, num_locations=4, architecture=architecture)
    objective = prepare(case, VariationalBound(UNBIASED[name](), expectation_prob=0.0))
    errors = largest_errors(moments(case, objective, num_batches=200, copies=100), exact_gradient(case))
    assert errors.keys() == dict(case.decoder.named_parameters()).keys()
    assert max(errors.values()) < MAX_STANDARD_ERRORS, errors


@pytest.mark.parametrize("name", BIASED)
def test_the_same_check_detects_a_biased_estimator(name: str) -> None:
    case = make_case(seed=0, num_locations=4)
    exact = exact_gradient(case)
    estimated = moments(case, prepare(case, BIASED[name]()), num_batches=200, copies=100)
    bias, noise = exact_case.relative_bias(estimated, exact)
    assert max(largest_errors(estimated, exact).values()) > MAX_STANDARD_ERRORS
    assert bias > 3 * noise


@pytest.mark.parametrize("name", ["leave-one-out-2", "top-2"])
def test_normalized_advantages_scale_the_score_function_term_only(name: str) -> None:
    """λ_r = σ gives the exact gradient, where σ is the root mean square of the advantages of earlier batches."""
    case = make_case(seed=0, num_locations=4)
    objective = VariationalBound(UNBIASED[name](), expectation_prob=0.0, normalize_advantages=True)
    objective = prepare(case, objective)
    scale = float(objective.advantage_square.value) ** -0.5
    assert not 0.9 < scale < 1.1
    estimated = moments(case, objective, num_batches=200, copies=100)
    exact = exact_gradient(case, score_function_weight=scale)
    assert max(largest_errors(estimated, exact).values()) < MAX_STANDARD_ERRORS
    objective.estimator.score_function_weight = 1 / scale
    estimated = moments(case, objective, num_batches=200, copies=100)
    assert max(largest_errors(estimated, exact_gradient(case)).values()) < MAX_STANDARD_ERRORS


def test_normalized_advantages_do_not_depend_on_the_scale_of_the_rewards() -> None:
    terms = {}
    for factor in (1.0, 5.0):
        case = make_case(seed=0, num_locations=4)
        objective = VariationalBound(LeaveOneOut(), expectation_prob=0.0, normalize_advantages=True).double()
        samples = draw_samples(case, objective.estimator)
        samples.__dict__["rewards"] = factor * samples.rewards
        first = objective.estimate(samples, case.num_captions)
        assert first.terms["score_function"] == 0, "the first batch only initializes the average"
        terms[factor] = objective.estimate(samples, case.num_captions).terms["score_function"].item()
    assert terms[1.0] == pytest.approx(terms[5.0])
    assert terms[1.0] != 0


def draw_samples(case: exact_case.Case, estimator: GradientEstimator) -> LocationSamples:
    token_ids, lengths = (part.repeat_interleave(estimator.num_samples, 1) for part in (case.token_ids, case.lengths))
    attention_fn = estimator.attention_fn(torch.Generator().manual_seed(0))
    output = case.decoder(case.features, token_ids, lengths, attention_fn)
    return LocationSamples(output, estimator.num_samples, case.decoder)


@pytest.mark.parametrize("unit", ["image", "batch"])
def test_with_the_expectation_the_mean_is_that_of_both_losses(unit: str) -> None:
    """This includes the entropy term, whose gradient is taken along the sampled locations, as in the paper."""
    case = make_case(seed=1, num_locations=4)
    objective = VariationalBound(Reinforce(), expectation_prob=0.5, entropy_weight=0.7, expectation_unit=unit)
    # One decision per batch applies to all copies, so more batches with fewer copies are required.
    estimated = moments(case, prepare(case, objective), *((200, 100) if unit == "image" else (800, 4)))
    exact = exact_gradient(case, expectation_prob=0.5, entropy_weight=0.7)
    assert max(largest_errors(estimated, exact).values()) < MAX_STANDARD_ERRORS


def test_exact_gradient_is_that_of_the_bound() -> None:
    """Finite differences of the bound, computed for one location sequence at a time."""
    case = make_case(seed=2, num_locations=3)

    def bound() -> float:
        total = 0.0
        for image, caption in itertools.product(range(2), range(2)):
            for locations in itertools.product(range(3), repeat=int(case.lengths[image, caption])):
                memory, state = case.decoder.init_state(case.features[image : image + 1])
                prob, reward = 1.0, 0.0
                for step, location in enumerate(locations):
                    attention_fn = functools.partial(attend_at, torch.tensor([[location]]))
                    token_id = case.token_ids[image, caption, step]
                    log_probs, state, attended = case.decoder.step(token_id.view(1, 1), state, memory, attention_fn)
                    prob *= float(attended.scores.softmax(-1)[0, 0, location])
                    reward += float(log_probs[0, 0, case.token_ids[image, caption, step + 1]])
                total += prob * reward
        return total / 4

    exact = exact_gradient(case)
    with torch.no_grad():
        for name, parameter in case.decoder.named_parameters():
            index = int(exact[name].abs().argmax())
            flat = parameter.view(-1)
            original, values = flat[index].clone(), []
            for difference in (1e-5, -1e-5):
                flat[index] = original + difference
                values.append(bound())
            flat[index] = original
            expected = -(values[0] - values[1]) / 2e-5
            assert float(exact[name].flatten()[index]) == pytest.approx(expected, rel=1e-4, abs=1e-8), name


@pytest.mark.parametrize("estimator_class", [cls for cls in ESTIMATORS if cls is not StraightThroughGumbel])
def test_score_function_term_is_exactly_zero_where_the_expectation_is_used(
    estimator_class: type[GradientEstimator],
) -> None:
    """Its value and its gradient; the rest is the gradient of soft attention."""
    case = make_case(seed=3, num_locations=4)
    objective = VariationalBound(estimator_class(), expectation_prob=1.0)
    objective.estimator.setup(case.decoder.hidden_size)
    objective = objective.double()
    bound = estimate(case, objective, 1, torch.Generator().manual_seed(0))
    score_function = bound.terms["score_function"]
    assert score_function.item() == 0
    parameters = list(case.decoder.parameters())
    gradients = torch.autograd.grad(score_function, parameters, retain_graph=True, allow_unused=True)
    assert all(gradient is None or not gradient.any() for gradient in gradients)
    exact = exact_gradient(case, expectation_prob=1.0)
    torch.testing.assert_close(exact_case.gradients(case.decoder, bound.loss), exact)
    assert all(not buffer.any() for buffer in objective.buffers()), "averages follow sampled locations only"


def test_expectation_is_chosen_per_image_or_per_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    per_image, per_batch = (
        VariationalBound(Reinforce(), expectation_prob=0.3, expectation_unit=unit) for unit in ("image", "batch")
    )
    fractions = [per_image.sample_expectation_mask(1000, generator).float().mean().item() for _ in range(5)]
    assert all(0.25 < fraction < 0.35 for fraction in fractions)
    masks = [per_batch.sample_expectation_mask(10, generator) for _ in range(300)]
    assert all(len(set(mask.tolist())) == 1 for mask in masks)
    assert 0.2 < sum(mask[0].item() for mask in masks) / 300 < 0.4


@pytest.mark.parametrize("estimator_class", ESTIMATORS)
def test_loss_does_not_depend_on_the_batch_size(estimator_class: type[GradientEstimator]) -> None:
    """Copies of the batch with the same locations have the same loss, for any λ_r and λ_e."""
    case = make_case(seed=4, num_locations=4)
    objective = VariationalBound(estimator_class(), entropy_weight=0.3, expectation_prob=0.0)
    objective = prepare(case, objective)
    objective.estimator.score_function_weight = 0.7
    num_samples = objective.estimator.num_samples
    token_ids, lengths = (part.repeat_interleave(num_samples, 1) for part in (case.token_ids, case.lengths))
    locations = torch.randint(4, (2, 2 * num_samples, 3), generator=torch.Generator().manual_seed(0))

    def loss(copies: int) -> torch.Tensor:
        features, ids, counts, repeated = (
            part.repeat(copies, *(1 for _ in part.shape[1:])) for part in (case.features, token_ids, lengths, locations)
        )
        output = case.decoder(features, ids, counts, attend_sequence(repeated, case.decoder))
        return objective.estimate(LocationSamples(output, num_samples, case.decoder), 4 * copies).loss

    torch.testing.assert_close(loss(1), loss(3))


def test_moving_average_baseline_starts_at_the_first_reward() -> None:
    case = make_case(seed=5, num_locations=4)
    objective = VariationalBound(Reinforce(decay=0.9), expectation_prob=0.0).double()
    generator = torch.Generator().manual_seed(0)
    bounds = [estimate(case, objective, 1, generator) for _ in range(4)]
    rewards = [bound.statistics["reward"].item() for bound in bounds]
    assert bounds[0].terms["score_function"] == 0, "the first batch only initializes the baseline"
    assert all(bound.terms["score_function"] != 0 for bound in bounds[1:])
    for step in (1, 2, 3):
        weights = [0.9 ** (step - 1 - index) for index in range(step)]  # of the earlier batches, bias-corrected
        expected = sum(w * r for w, r in zip(weights, rewards, strict=False)) / sum(weights)
        assert bounds[step].statistics["baseline"].item() == pytest.approx(expected)
    saved = objective.state_dict()
    assert saved["estimator.average_return.num_updates"] == 4
    resumed = VariationalBound(Reinforce(decay=0.9), expectation_prob=0.0).double()
    resumed.load_state_dict(saved)
    following = [estimate(case, one, 1, torch.Generator().manual_seed(1)).loss.item() for one in (objective, resumed)]
    assert following[0] == following[1]


def test_learned_baseline_is_fitted_before_the_score_function_term_is_used() -> None:
    case = make_case(seed=5, num_locations=4)
    objective = VariationalBound(LearnedBaseline(warmup_steps=3), expectation_prob=0.0)
    objective.estimator.setup(case.decoder.hidden_size)
    objective = objective.double()
    generator = torch.Generator().manual_seed(0)
    bounds = [estimate(case, objective, 5, generator) for _ in range(5)]
    assert [bound.terms["score_function"].item() == 0 for bound in bounds] == [True] * 3 + [False] * 2
    assert all(bound.terms["baseline"] > 0 for bound in bounds)
    # The average reward per token makes even an unfitted linear correction a useful baseline.
    assert bounds[4].terms["baseline"] < 0.7 * bounds[0].terms["baseline"]


def test_returns_are_rewards_to_go_and_baselines_means_of_the_other_samples() -> None:
    rewards = torch.tensor([[[1.0, 2.0, 4.0], [3.0, 0.0, 0.0], [5.0, 1.0, 1.0]]])
    assert rewards_to_go(rewards).tolist() == [[[7, 6, 4], [3, 0, 0], [7, 2, 1]]]
    assert leave_one_out_mean(rewards).tolist() == [[[4, 0.5, 0.5], [3, 1.5, 2.5], [2, 1, 2]]]


@pytest.mark.parametrize("estimator_class", [Reinforce, LeaveOneOut, LearnedBaseline, TopKMarginalized])
def test_score_function_weight_multiplies_the_whole_term(estimator_class: type[GradientEstimator]) -> None:
    """With λ_r = 0, attention has no gradient from sampled locations, whatever part of the term is summed exactly."""
    case = make_case(seed=6, num_locations=4)
    objective = VariationalBound(estimator_class(score_function_weight=0.0), expectation_prob=0.0)
    objective.estimator.setup(case.decoder.hidden_size)
    loss = estimate(case, objective.double(), 3, torch.Generator().manual_seed(0)).loss
    (gradient,) = torch.autograd.grad(loss, case.decoder.attention.score_fn.query_proj.weight)
    assert not gradient.any()


def test_invalid_settings() -> None:
    for make, message in (
        (lambda: LeaveOneOut(1), r"LeaveOneOut.num_samples must be >= 2, got 1"),
        (lambda: Reinforce(decay=1.0), r"Reinforce.decay must be in \[0, 1\), got 1.0"),
        (lambda: LearnedBaseline(warmup_steps=-1), r"LearnedBaseline.warmup_steps must be >= 0, got -1"),
        (lambda: TopKMarginalized(k=0), r"TopKMarginalized.k must be >= 1, got 0"),
        (lambda: VariationalBound(Reinforce(), expectation_unit="x"), "unknown expectation_unit 'x'; choose image"),
        (lambda: VariationalBound(Reinforce(), expectation_prob=1.5), r"expectation_prob must be in \[0, 1\], got 1.5"),
    ):
        with pytest.raises(CaptioningError, match=message):
            make()
