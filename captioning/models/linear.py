"""Linear layers that use oneDNN where MKL is slow.

PyTorch computes matrix products with MKL, which does not use AVX-512 on AMD CPUs. oneDNN, which PyTorch uses for
convolutions, does, and takes half the time. The only oneDNN operator for plain tensors is the one that
``torch.compile`` selects for inference. It has no gradient, so this module adds one.
"""

import functools
import platform
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_MIN_PRODUCTS = 2**21  # below, the overhead of the autograd function is larger than the gain


class Linear(nn.Linear):
    """``nn.Linear``, in oneDNN where that is faster."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear``: x (…, I), weight (O, I), bias (O,) -> (…, O), in oneDNN where that is faster."""
    if not _supports_onednn(x, weight) or x.numel() * len(weight) < _MIN_PRODUCTS:
        return F.linear(x, weight, bias)
    # Contiguous: oneDNN has no fast kernel for rows that are a part of longer rows, as a slice of a tensor is.
    product: Tensor = _OneDnnLinear.apply(x.reshape(-1, x.shape[-1]).contiguous(), weight, bias)
    return product.reshape(*x.shape[:-1], len(weight))


def _supports_onednn(x: Tensor, weight: Tensor) -> bool:
    """``torch.backends.mkldnn.enabled = False`` disables oneDNN here as well."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.is_autocast_enabled("cpu"):
        return False
    is_float32 = x.device.type == weight.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    return is_float32 and bool(torch.backends.mkldnn.enabled) and _is_onednn_faster()


@functools.cache
def _is_onednn_faster() -> bool:
    """Whether this is an AMD CPU with AVX-512, and this version of PyTorch has the operator."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    info = Path("/proc/cpuinfo")
    return "AuthenticAMD" in (info.read_text() if info.is_file() else platform.processor())


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _product(grad, weight.T) if needs_x else None,
            _weight_gradient(grad, x) if needs_weight else None,
            grad.sum(dim=0) if needs_bias else None,
        )


def _weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """gradᵀ x for grad (N, O) and x (N, I). The operator copies its left factor if that is transposed."""
    if grad.numel() > x.numel() + grad.shape[1] * x.shape[1]:
        return _product(x.T, grad.T).T.contiguous()
    return _product(grad.T, x.T)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (N, I), weight (O, I), bias (O,) -> (N, O)."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product
