import pytest
import torch
from torch import Tensor

from captioning.models import additive_score as module
from captioning.models.additive_score import additive_score


@pytest.fixture(autouse=True)
def use_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute the small inputs of the tests in blocks too."""
    monkeypatch.setattr(module, "_MIN_ELEMENTS", 1)


def plain_score(keys: Tensor, queries: Tensor, weight: Tensor) -> Tensor:
    return (keys[:, None] + queries[:, :, None]).tanh() @ weight


def make_inputs(scale: float, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Keys (B, L, A), queries (B, C, A) and weight (A,)."""
    generator = torch.Generator().manual_seed(0)
    keys, queries = (scale * torch.randn(2, size, 24, generator=generator, dtype=dtype) for size in (13, 3))
    weight = torch.randn(24, generator=generator, dtype=dtype) / 24**0.5
    return keys.requires_grad_(), queries.requires_grad_(), weight.requires_grad_()


@pytest.mark.parametrize("block_elements", [2**17, 100, 1])
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 30.0, 300.0])
def test_equals_the_plain_formula_including_gradients(
    scale: float, block_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last two scales exceed the range in which the exponentials can be multiplied."""
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", block_elements)
    inputs = make_inputs(scale)
    expected, actual = plain_score(*inputs), additive_score(*inputs)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    gradients = (torch.autograd.grad(scores, inputs, direction) for scores in (actual, expected))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-5, rtol=1e-5)


def test_cancellation_beyond_the_range() -> None:
    keys, queries = torch.full((1, 1, 1), 100.0), torch.full((1, 1, 1), -99.5)
    score = additive_score(keys, queries, torch.ones(1))
    torch.testing.assert_close(score, torch.full((1, 1, 1), 0.5).tanh())


def test_gradient_check() -> None:
    assert torch.autograd.gradcheck(additive_score, make_inputs(1.0, torch.float64))


def test_other_precisions_use_the_plain_formula() -> None:
    inputs = [x.detach().bfloat16() for x in make_inputs(1.0)]
    assert torch.equal(additive_score(*inputs), plain_score(*inputs))


def test_tracing_supports_other_sizes() -> None:
    keys, queries, weight = (x.detach() for x in make_inputs(1.0))
    traced = torch.jit.trace(additive_score, (keys, queries, weight))
    torch.testing.assert_close(
        traced(keys[:1], queries[:1, :2], weight), plain_score(keys[:1], queries[:1, :2], weight)
    )


def test_nan_is_not_hidden() -> None:
    keys, queries, weight = (x.detach() for x in make_inputs(1.0))
    keys[0, 0, 0] = torch.nan
    assert additive_score(keys, queries, weight)[0, :, 0].isnan().all()
