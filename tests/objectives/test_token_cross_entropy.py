import pytest
import torch
import torch.nn.functional as F

from captioning.objectives import token_cross_entropy as module
from captioning.objectives.token_cross_entropy import token_cross_entropy


@pytest.fixture(params=[2**18, 40, 1], ids="block of {} elements".format)
def block_elements(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", request.param)


def make_inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits (N, V), targets (N,) and the gradient of the losses (N,)."""
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(13, 19, generator=generator)
    targets = torch.randint(19, (13,), generator=generator)
    return logits.to(dtype).requires_grad_(), targets, torch.randn(13, generator=generator)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("block_elements")
def test_equals_torch_including_gradients(label_smoothing: float, dtype: torch.dtype) -> None:
    logits, targets, direction = make_inputs(dtype)
    expected = F.cross_entropy(logits.float(), targets, reduction="none", label_smoothing=label_smoothing)
    actual = token_cross_entropy(logits, targets, label_smoothing)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-6)
    (expected_gradient,) = torch.autograd.grad(expected, logits, direction)
    (gradient,) = torch.autograd.grad(actual, logits, direction)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=1e-6)


def test_gradient_of_extreme_logits_is_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    loss = token_cross_entropy(logits, torch.tensor([1]), 0.1).sum()
    loss.backward()
    expected = F.cross_entropy(logits, torch.tensor([1]), label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(logits.grad, torch.tensor([[1 - 0.1 / 3, -0.9 - 0.1 / 3, -0.1 / 3]]))


def test_gradient_check() -> None:
    logits, targets, _ = make_inputs(torch.float64)
    assert torch.autograd.gradcheck(lambda x: token_cross_entropy(x, targets, 0.1), logits)


def test_no_tokens() -> None:
    logits = torch.zeros(0, 7, requires_grad=True)
    losses = token_cross_entropy(logits, torch.zeros(0, dtype=torch.long))
    losses.sum().backward()
    assert losses.shape == (0,)
    assert logits.grad.shape == (0, 7)
