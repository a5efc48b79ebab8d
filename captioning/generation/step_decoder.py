"""Interface of the decoders that captions are generated with: in PyTorch, or in ONNX Runtime."""

from typing import Any, Protocol

from captioning.utils.array_ops import Array


class StepDecoder(Protocol):
    """A decoder on torch tensors (:class:`captioning.models.decoder.Decoder`) or NumPy arrays (``ExportedModel``).

    Shapes: B images, K captions (or beams) per image, L locations, D feature size, V vocabulary size, H hidden size.
    """

    def init_state(self, features: Array) -> tuple[Any, Any]:
        """Features (B, L, D) -> memory with arrays (B, ...), and the initial state with arrays (B, 1, H).

        Both are named tuples.
        """
        ...

    def step(self, token_ids: Array, state: Any, memory: Any, attention_fn: Any = None) -> tuple[Array, Any, Any]:
        """Previous tokens (B, K) -> log-probabilities (B, K, V), new state, attention output.

        The attention output has ``weights`` and ``context_gate``; sampling also reads ``locations``.
        """
        ...
