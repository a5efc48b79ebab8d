"""Cross-entropy over a large vocabulary with little memory traffic.

Shapes: N tokens, V vocabulary size.
"""

from typing import Any

import torch
from torch import Tensor

_BLOCK_ELEMENTS = 2**18  # 1 MB in float32, so that a block of logits stays in the level-2 cache of a CPU core


def token_cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """``F.cross_entropy`` with ``reduction="none"``, for logits (N, V) and targets (N,). Returns (N,).

    ``F.cross_entropy`` keeps the log-probabilities for its backward pass and, with label smoothing, adds the gradients
    of two terms: several tensors as large as the logits. This function keeps only the normalizer of each token, and
    computes the gradient in one pass over the logits. Logits of half precision are processed in float32.
    """
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    losses: Tensor = _TokenCrossEntropy.apply(logits, targets, label_smoothing)
    return losses


class _TokenCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
        log_normalizers, losses = [], []
        for block, block_targets in zip(_blocks(logits), _blocks(targets, logits), strict=True):
            log_normalizers.append(block.logsumexp(dim=-1))
            loss = log_normalizers[-1] - (1 - label_smoothing) * block.gather(1, block_targets[:, None]).squeeze(1)
            losses.append(loss - label_smoothing * block.mean(dim=-1) if label_smoothing else loss)
        ctx.save_for_backward(logits, targets, torch.cat(log_normalizers))
        ctx.label_smoothing = label_smoothing
        return torch.cat(losses)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        """∂loss/∂logits = softmax(logits) − (1 − ε) one-hot(target) − ε / V."""
        logits, targets, log_normalizers = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        columns = grad_output[:, None], log_normalizers[:, None]
        for grad, block, scale, log_normalizer in zip(
            _blocks(gradient), _blocks(logits), *(_blocks(column, logits) for column in columns), strict=True
        ):
            torch.sub(block, log_normalizer, out=grad).exp_()
            if ctx.label_smoothing:
                grad.sub_(ctx.label_smoothing / logits.shape[1])
            grad.mul_(scale)
        gradient.scatter_add_(1, targets[:, None], (ctx.label_smoothing - 1) * grad_output[:, None])
        return gradient, None, None


def _blocks(x: Tensor, logits: Tensor | None = None) -> tuple[Tensor, ...]:
    """Split (N, …) into blocks of rows that fit the cache, as the logits (N, V) require. A GPU gets one block."""
    logits = x if logits is None else logits
    num_rows = max(1, _BLOCK_ELEMENTS // logits.shape[1]) if logits.device.type == "cpu" else max(1, len(logits))
    return x.split(num_rows)
