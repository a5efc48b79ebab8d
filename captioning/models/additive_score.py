"""The additive attention score on a CPU, in blocks that fit the cache.

The plain formula vᵀ tanh(k + q) is bound by memory: its energies have B·C·L·A elements, and autograd keeps them at
every time step. Here they exist for one image and caption at a time, the backward pass recomputes them, and

    tanh(k + q) = 1 − 2 r    with    r = 1 / (1 + exp(2k) exp(2q))

requires one exponential per key, shared by all captions of the image, in place of one tanh per key and caption.

Shapes: B images, C captions (or beams) per image, L locations, A attention size.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_BLOCK_ELEMENTS = 2**17  # two blocks in float32 fit the level-2 cache of a CPU core
_MIN_ELEMENTS = 2**13  # of the energies of one image and caption; below, the loop costs more than the memory traffic
_MAX_EXPONENT = 43.0  # the product of two exponentials is then within the range of float32


def additive_score(keys: Tensor, queries: Tensor, weight: Tensor) -> Tensor:
    """e_i = vᵀ tanh(k_i + q).

    Args:
        keys: (B, L, A).
        queries: (B, C, A).
        weight: (A,), v.

    Returns:
        scores (B, C, L).
    """
    if _supports_blocks(keys, queries, weight):
        scores: Tensor = _BlockedAdditiveScore.apply(keys, queries, weight)
        return scores
    return (keys[:, None] + queries[:, :, None]).tanh() @ weight


def _supports_blocks(*tensors: Tensor) -> bool:
    """Whether the blocked implementation applies: eager mode, CPU, float32 or float64, and enough elements.

    Tracing or compiling would unroll the loops.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if tensors[0][0].numel() < _MIN_ELEMENTS:
        return False
    return all(x.device.type == "cpu" and x.dtype == tensors[0].dtype for x in tensors) and tensors[0].dtype in (
        torch.float32,
        torch.float64,
    )


class _BlockedAdditiveScore(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys: Tensor, queries: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(keys, queries, weight)
        scores = keys.new_empty(*queries.shape[:2], keys.shape[1])  # (B, C, L)
        for image, caption, rows, r in _blocks(keys, queries):
            torch.mv(r, weight, out=scores[image, caption, rows])
        return scores.mul_(-2).add_(weight.sum())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """With tanh = 1 − 2 r, its derivative 1 − tanh² is 4 r (1 − r)."""
        keys, queries, weight = ctx.saved_tensors
        grad_keys, grad_queries, grad_weight = (torch.zeros_like(x) for x in (keys, queries, weight))
        for image, caption, rows, r in _blocks(keys, queries):
            grad = grad_scores[image, caption, rows]  # (rows,)
            grad_weight.addmv_(r.T, grad)
            derivative = torch.addcmul(r, r, r, value=-1, out=r)  # r (1 − r)
            grad_queries[image, caption].addmv_(derivative.T, grad)
            grad_keys[image, rows].addcmul_(grad[:, None], derivative)
        scale = 4 * weight
        return grad_keys.mul_(scale), grad_queries.mul_(scale), grad_weight.mul_(-2).add_(grad_scores.sum())


def _blocks(keys: Tensor, queries: Tensor) -> Iterator[tuple[int, int, slice, Tensor]]:
    """Yield image, caption, rows, and r (rows, A) of a block of locations. The next block overwrites r."""
    num_locations, attention_size = keys.shape[1:]
    num_rows = max(1, min(num_locations, _BLOCK_ELEMENTS // attention_size))
    buffer, one = keys.new_empty(num_rows, attention_size), keys.new_ones(())
    for image in range(len(keys)):
        query_exponents = 2 * queries[image]  # (C, A)
        for start in range(0, num_locations, num_rows):
            rows = slice(start, min(start + num_rows, num_locations))
            exponents = 2 * keys[image, rows]
            r = buffer[: rows.stop - start]
            is_product = _is_in_range(exponents) and _is_in_range(query_exponents)
            if is_product:
                key_factors, query_factors = exponents.exp_(), query_exponents.exp()
            for caption in range(queries.shape[1]):
                if is_product:
                    torch.addcmul(one, key_factors, query_factors[caption], out=r)
                else:
                    torch.add(exponents, query_exponents[caption], out=r).exp_().add_(1)
                yield image, caption, rows, r.reciprocal_()


def _is_in_range(exponents: Tensor) -> bool:
    low, high = exponents.aminmax()
    return bool((low >= -_MAX_EXPONENT) & (high <= _MAX_EXPONENT))
