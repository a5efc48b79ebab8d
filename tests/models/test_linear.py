import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from captioning.models import linear as module
from captioning.models.linear import Linear, linear


@pytest.fixture(autouse=True)
def use_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use oneDNN on any CPU, for the small inputs of the tests too."""
    monkeypatch.setattr(module, "_MIN_PRODUCTS", 0)
    monkeypatch.setattr(module, "_is_onednn_faster", lambda: hasattr(torch.ops.mkldnn, "_linear_pointwise"))


def make_inputs(num_rows: int, output_size: int, input_size: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """x (2, N, I), weight (O, I) and bias (O,)."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, num_rows, input_size), (output_size, input_size), (output_size,)
    x, weight, bias = (torch.randn(shape, generator=generator).requires_grad_() for shape in shapes)
    return x, weight, bias


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("num_rows", "output_size"), [(1, 1), (3, 5), (50, 40)])  # the last one has a large output
def test_equals_the_layer_of_pytorch_including_gradients(num_rows: int, output_size: int, has_bias: bool) -> None:
    inputs = make_inputs(num_rows, output_size)[: 3 if has_bias else 2]
    actual, expected = linear(*inputs), F.linear(*inputs)
    torch.testing.assert_close(actual, expected)
    direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    gradients = (torch.autograd.grad(output, inputs, direction) for output in (actual, expected))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient)
        assert gradient.is_contiguous()


def test_strided_and_one_dimensional_inputs() -> None:
    x, weight, bias = make_inputs(3, 5)
    strided = x.transpose(0, 1)
    torch.testing.assert_close(linear(strided, weight, bias), F.linear(strided, weight, bias))
    torch.testing.assert_close(linear(x[0, 0], weight, bias), F.linear(x[0, 0], weight, bias))


def test_products_read_contiguous_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """For rows that are a part of longer rows, oneDNN uses a reference implementation, a hundred times as slow."""
    operands: list[Tensor] = []
    product = module._product

    def record(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        operands.extend((x, weight))
        return product(x, weight, bias)

    monkeypatch.setattr(module, "_product", record)
    wide = torch.randn(6, 20, requires_grad=True)
    weight = torch.randn(5, 7, requires_grad=True)
    gradient = torch.randn(6, 9)[:, 2:7]
    linear(wide[:, 3:10], weight).backward(gradient)
    assert len(operands) == 6
    assert all(operand.is_contiguous() or operand.T.is_contiguous() for operand in operands)
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, gradient.T @ wide[:, 3:10].detach())


def test_gradients_only_where_required() -> None:
    x, weight, bias = make_inputs(3, 5)
    linear(x.detach(), weight.detach(), bias).sum().backward()
    assert bias.grad is not None
    assert bias.grad.tolist() == [6.0] * 5


def test_switch_of_pytorch_disables_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(3, 5)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert torch.equal(linear(*inputs), F.linear(*inputs))


def test_other_precisions_and_autocast() -> None:
    layer, x = Linear(7, 5), make_inputs(3, 5)[0].detach()
    assert layer.double()(x.double()).dtype == torch.float64
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.float()(x).dtype == torch.bfloat16


def test_tracing_supports_other_sizes() -> None:
    x, weight, bias = (tensor.detach() for tensor in make_inputs(3, 5))
    traced = torch.jit.trace(linear, (x, weight, bias))
    torch.testing.assert_close(traced(x[:1, :2], weight, bias), F.linear(x[:1, :2], weight, bias))
