import sys

import pytest
import torch
from torch import Tensor

from captioning.models import attention
from captioning.models.attention import AttentionFn, HardAttention, LocationScore, SoftAttention
from captioning.utils.errors import CaptioningError

NUM_LOCATIONS = 5


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_inputs(num_images: int = 2, num_captions: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores (B, C, L) and features (B, L, D)."""
    generator = seeded(1)
    scores = 2 * torch.randn(num_images, num_captions, NUM_LOCATIONS, generator=generator)
    return scores, torch.randn(num_images, NUM_LOCATIONS, 4, generator=generator)


def test_argmax_attends_only_to_the_most_probable_location() -> None:
    scores, features = make_inputs()
    output = attention.attend_argmax(scores, features)
    for image in range(2):
        for caption in range(3):
            location = int(scores[image, caption].argmax())
            assert output.locations[image, caption] == location
            assert torch.equal(output.context[image, caption], features[image, location])
            assert output.weights[image, caption].tolist() == [float(i == location) for i in range(NUM_LOCATIONS)]


def test_expectation_averages_all_locations() -> None:
    scores, features = make_inputs()
    output = attention.attend_expectation(scores, features)
    torch.testing.assert_close(output.weights, scores.softmax(-1))
    torch.testing.assert_close(output.context, torch.einsum("bcl,bld->bcd", scores.softmax(-1), features))
    assert (output.locations == -1).all()


def sparse_weights_by_bisection(scores: Tensor, power: float) -> Tensor:
    """[scores / power − τ]₊^power with the threshold τ for which the weights sum to 1 (Peters et al. 2019, eq. 10)."""
    scores = scores.double() / power
    low, high = scores.amax(-1, keepdim=True) - 1, scores.amax(-1, keepdim=True)
    for _ in range(60):
        middle = (low + high) / 2
        is_too_low = (scores - middle).clamp(min=0).pow(power).sum(-1, keepdim=True) > 1
        low, high = torch.where(is_too_low, middle, low), torch.where(is_too_low, high, middle)
    return (scores - low).clamp(min=0).pow(power)


@pytest.mark.parametrize(("activation", "power"), [("sparsemax", 1), ("entmax15", 2)])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_sparse_activations_equal_their_definition(activation, power: float, scale: float) -> None:
    scores = scale * torch.randn(20, 3, 196, generator=seeded())
    weights = attention.attention_weights(scores, activation)
    expected = sparse_weights_by_bisection(scores, power)
    torch.testing.assert_close(weights.double(), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(20, 3), atol=1e-5, rtol=0)
    assert ((weights == 0).float().mean() > 0.4) == (scale >= 1 or activation == "sparsemax")


@pytest.mark.parametrize("activation", ["sparsemax", "entmax15"])
def test_gradient_of_sparse_activations(activation) -> None:
    scores = 2 * torch.randn(4, 3, 9, dtype=torch.double, generator=seeded())
    features = torch.randn(4, 9, 5, dtype=torch.double, generator=seeded(1))
    assert (attention.attention_weights(scores, activation) == 0).any()

    def context(scores: Tensor, features: Tensor) -> Tensor:
        return attention.attend_expectation(scores, features, activation).context

    assert torch.autograd.gradcheck(context, (scores.requires_grad_(), features.requires_grad_()))


@pytest.mark.parametrize("activation", ["sparsemax", "entmax15"])
def test_sparse_activations_compute_half_precision_scores_in_float32(activation) -> None:
    scores = torch.randn(2, 3, 196, generator=seeded()).bfloat16()
    weights = attention.attention_weights(scores, activation)
    assert weights.dtype == torch.bfloat16
    assert torch.equal(weights, attention.attention_weights(scores.float(), activation).bfloat16())


def test_only_sparse_attention_imports_entmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "entmax", None)
    scores, features = make_inputs()
    attention.attend_expectation(scores, features)
    with pytest.raises(ImportError):
        attention.attend_expectation(scores, features, "sparsemax")


@pytest.mark.parametrize("attend", [attention.attend_sample, attention.attend_straight_through_gumbel])
def test_sampling_frequencies_match_the_probabilities(attend) -> None:
    scores, features = make_inputs(1, 1)
    output = attend(scores.expand(1, 20_000, -1), features, seeded())
    assert ((output.weights - 1).abs() < 1e-6).sum() == 20_000, "exactly one location per sample"
    frequencies = output.weights.mean((0, 1))
    probs = scores.softmax(-1)[0, 0]
    standard_error = (probs * (1 - probs) / 20_000).sqrt()
    assert ((frequencies - probs).abs() < 4 * standard_error).all()


@pytest.mark.parametrize("attend", [attention.attend_sample, attention.attend_straight_through_gumbel])
def test_sampling_is_determined_by_the_generator(attend) -> None:
    scores, features = make_inputs(4, 50)
    first, repeated, different = (attend(scores, features, seeded(seed)).weights for seed in (0, 0, 1))
    assert torch.equal(first, repeated)
    assert not torch.equal(first, different)


def test_straight_through_gumbel_has_the_gradient_of_the_softmax() -> None:
    """The forward pass selects the argmax of the perturbed scores, the backward pass uses their softmax."""
    scores, features = make_inputs()
    gumbel = -torch.empty_like(scores).exponential_(generator=seeded()).log()
    expected, actual = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    output = attention.attend_straight_through_gumbel(actual, features, seeded())
    assert torch.equal(output.weights.argmax(-1), (scores + gumbel).argmax(-1))
    direction = torch.randn(output.context.shape, generator=seeded(2))
    (output.context * direction).sum().backward()
    ((expected + gumbel).softmax(-1) @ features * direction).sum().backward()
    torch.testing.assert_close(actual.grad, expected.grad)


def test_expectation_mask_applies_to_all_captions_of_an_image() -> None:
    scores, features = make_inputs(3, 4)
    mask = torch.tensor([True, False, True])
    output = attention.attend_mixed(scores, features, mask, attention.attend_argmax)
    soft, hard = attention.attend_expectation(scores, features), attention.attend_argmax(scores, features)
    for image, is_expectation in enumerate(mask):
        for actual, from_soft, from_hard in zip(output[:4], soft[:4], hard[:4], strict=True):  # without the gate
            assert torch.equal(actual[image], (from_soft if is_expectation else from_hard)[image])


def test_expectation_mask_is_truncated_to_the_active_images() -> None:
    """Teacher forcing drops images whose captions have all ended from the end of the batch."""
    scores, features = make_inputs(2, 4)
    mask = torch.tensor([False, True, False])
    output = attention.attend_mixed(scores, features, mask, attention.attend_argmax)
    assert torch.equal(output.locations[0], scores[0].argmax(-1))
    assert (output.locations[1] == -1).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_hard_attention_computes_half_precision_scores_in_float32(dtype: torch.dtype) -> None:
    hard = HardAttention(LocationScore(7, NUM_LOCATIONS), 1.0).to(dtype)
    hidden, features = torch.randn(2, 3, 7, dtype=dtype), torch.randn(2, NUM_LOCATIONS, 4, dtype=dtype)
    assert hard(hidden, features, features).scores.dtype == torch.float32


def test_temperature_divides_the_scores() -> None:
    hidden, features = torch.randn(2, 3, 7), torch.randn(2, NUM_LOCATIONS, 4)
    score_fn = LocationScore(7, NUM_LOCATIONS)
    for temperature in (0.5, 1.0, 4.0):
        output = HardAttention(score_fn, temperature)(hidden, features, features, attention.attend_expectation)
        torch.testing.assert_close(output.weights, (score_fn(hidden, features) / temperature).softmax(-1))


def test_hard_attention_defaults_to_argmax() -> None:
    hidden, features = torch.randn(2, 3, 7), torch.randn(2, NUM_LOCATIONS, 4)
    hard = HardAttention(LocationScore(7, NUM_LOCATIONS), 1.0)
    attention_fns: tuple[AttentionFn | None, ...] = (None, attention.attend_argmax)
    default, explicit = (hard(hidden, features, features, attention_fn) for attention_fn in attention_fns)
    assert torch.equal(default.context, explicit.context)
    assert torch.equal(default.locations, explicit.locations)


@pytest.mark.parametrize(
    "module",
    [
        SoftAttention(LocationScore(7, NUM_LOCATIONS)),
        SoftAttention(LocationScore(7, NUM_LOCATIONS), "sparsemax"),
        HardAttention(LocationScore(7, NUM_LOCATIONS), 0.5),
    ],
)
def test_uniform_attention_ignores_the_scores(module: SoftAttention | HardAttention) -> None:
    hidden, features = torch.randn(2, 3, 7), torch.randn(2, NUM_LOCATIONS, 4)
    output = module(hidden, features, features, attention.attend_uniform)
    assert torch.equal(output.weights, torch.full((2, 3, NUM_LOCATIONS), 1 / NUM_LOCATIONS))
    torch.testing.assert_close(output.context, features.mean(1, keepdim=True).expand(-1, 3, -1))
    assert torch.equal(output.scores.softmax(-1), output.weights), (
        "the decoder computes α of hard attention from scores"
    )


@pytest.mark.parametrize("activation", ["softmax", "entmax15"])
def test_soft_attention_supports_only_the_expectation(activation) -> None:
    hidden, features = torch.randn(2, 3, 7), torch.randn(2, NUM_LOCATIONS, 4)
    soft = SoftAttention(LocationScore(7, NUM_LOCATIONS), activation)
    default = soft(hidden, features, features)
    explicit = soft(hidden, features, features, attention.attend_expectation)
    assert torch.equal(default.context, explicit.context)
    with pytest.raises(CaptioningError, match="uses soft attention"):
        soft(hidden, features, features, attention.attend_argmax)


def test_attention_mode_must_exist_and_apply_to_the_model() -> None:
    assert attention.make_attention_fn(None, seeded()) is None
    for name, is_hard in ((None, False), ("expectation", False), (None, True), ("argmax", True), ("sample", True)):
        attention.check_attention_mode(name, is_hard)
    with pytest.raises(CaptioningError, match="unknown attention_mode 'x'; choose one of expectation, argmax, sample"):
        attention.check_attention_mode("x", is_hard=True)
    with pytest.raises(CaptioningError, match=r"'argmax' requires hard attention.*omit attention_mode or use 'expec"):
        attention.check_attention_mode("argmax", is_hard=False)


def test_attention_fn_of_each_mode() -> None:
    scores, features = make_inputs()
    assert attention.make_attention_fn("expectation", seeded()) is attention.attend_expectation
    assert attention.make_attention_fn("argmax", seeded()) is attention.attend_argmax
    sample = attention.make_attention_fn("sample", seeded(4))
    assert sample is not None
    expected = attention.attend_sample(scores, features, seeded(4))
    assert torch.equal(sample(scores, features).locations, expected.locations)
