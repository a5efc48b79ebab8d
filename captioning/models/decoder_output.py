"""Tensors that the decoder receives and returns.

Shapes: B images, C captions (or beams) per image, T time steps, L locations, N tokens in the batch without padding,
V vocabulary size, D feature size, H hidden size, A attention size, E embedding size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor  # not imported at run time: ONNX Runtime fills the same tuples with NumPy arrays


class Memory(NamedTuple):
    """Tensors that the decoder computes once per image, shared by all captions of the image."""

    features: Tensor  # (B, L, D), after projection and feature mixing
    keys: Tensor  # (B, L, A)
    gates: Tensor  # (B, 1, 4H), contribution of the mean feature to the LSTM gates; zeros (B, 1, 1) if unused


class DecoderState(NamedTuple):
    """LSTM state."""

    hidden: Tensor  # (B, C, H)
    cell: Tensor  # (B, C, H)


class StepOutputs(NamedTuple):
    """Results of all time steps of teacher forcing. Values of finished captions are meaningless."""

    hidden: Tensor  # (B, C, T, H), h_t
    context: Tensor  # (B, C, T, D), z_t after the context gate
    weights: Tensor  # (B, C, T, L)
    # The other fields exist for hard attention only.
    scores: Tensor | None = None  # (B, C, T, L)
    locations: Tensor | None = None  # (B, C, T, 1)
    query_hidden: Tensor | None = None  # (B, C, T, H), the state that attention used as its query
    query_cell: Tensor | None = None  # (B, C, T, H)


class HardAttentionTrace(NamedTuple):
    """Attended location of each token, and the decoder inputs that its logits at another location require."""

    token_index: Tensor  # (N, 3), indices (image, caption, step) of each token
    attention_log_probs: Tensor  # (N, L), log α
    locations: Tensor  # (N,), attended location; -1 if all locations contribute
    state: DecoderState  # (N, H) each, the state that attention used as its query
    input_embeddings: Tensor  # (N, E), embedding of the previous token
    features: Tensor  # (B, L, D), as in Memory


class DecoderOutput(NamedTuple):
    """Result of teacher forcing. ``logits`` and ``targets`` contain no padding."""

    logits: Tensor  # (N, V)
    targets: Tensor  # (N,)
    attention_weights: Tensor  # (B, C, T, L), α; zero at padding
    token_mask: Tensor  # (B, C, T) bool on the CPU, true for the N tokens
    attention_trace: HardAttentionTrace | None  # None for soft attention
