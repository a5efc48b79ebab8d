"""Matrix products of PyTorch in oneDNN, for CPUs on which MKL does not use AVX-512.

PyTorch computes float32 matrix products in MKL, which uses AVX2 on AMD CPUs. oneDNN selects its kernels by the
instruction set alone, and takes about half of the time on an AMD CPU with AVX-512.
"""

import functools
import warnings
from pathlib import Path

import torch
from torch import Tensor

_MIN_PRODUCTS = 2**20  # multiplications of a matrix product; for fewer, the call takes longer than the product


@functools.cache
def use_onednn_matmul() -> bool:
    """Compute large float32 matrix products of this process in oneDNN, if that is faster on this CPU.

    Returns:
        Whether oneDNN is used.
    """
    if not (_is_amd() and torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkldnn.is_available()):
        return False
    _register_kernels()
    return True


def _is_amd() -> bool:
    cpuinfo = Path("/proc/cpuinfo")  # Linux
    return cpuinfo.is_file() and "AuthenticAMD" in cpuinfo.read_text()


@functools.cache
def _register_kernels() -> torch.library.Library:
    """Replace the CPU kernels of ``aten::mm`` and ``aten::addmm``, which F.linear and its gradients call."""
    library = torch.library.Library("aten", "IMPL")  # the kernels are removed with this object
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the replacement
        library.impl("mm", _mm, "CPU")
        library.impl("addmm", _addmm, "CPU")
    return library


def _mm(left: Tensor, right: Tensor) -> Tensor:
    if _is_large(left, right):
        # oneDNN copies a transposed left matrix, as in the gradient of a weight, but reorders a right one faster.
        is_transposed = left.stride(0) == 1 and not left.is_contiguous()
        return _linear(right.t(), left.t()).t() if is_transposed else _linear(left, right)
    # The variant with ``out`` keeps its kernel.
    return torch.ops.aten.mm.out(left, right, out=left.new_empty(left.shape[0], right.shape[1]))


def _addmm(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if _is_large(left, right) and bias.shape == right.shape[1:] and beta == alpha == 1:
        return _linear(left, right, bias)
    out = left.new_empty(left.shape[0], right.shape[1])
    return torch.ops.aten.addmm.out(bias, left, right, beta=beta, alpha=alpha, out=out)


def _is_large(left: Tensor, right: Tensor) -> bool:
    return left.dtype is right.dtype is torch.float32 and left.numel() * right.shape[1] >= _MIN_PRODUCTS


def _linear(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(left, right.t(), bias, "none", [], "")
