"""Ensembles: several models behind the interface of one encoder and one decoder.

The probability of the next word is the mean over the models, and so is the attention map. Tensors of the models are
concatenated along their last dimension, so that every search works on an ensemble as on a single model.

Shapes: B images, C captions (or beams) per image, L locations, V tokens, M models.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from captioning.models.attention import AttentionFn, AttentionOutput
from captioning.models.decoder import Decoder
from captioning.models.decoder_output import DecoderState, Memory
from captioning.models.encoder import FeatureExtractor


class EnsembleEncoder(FeatureExtractor):
    """Encoders with the same image transform and grid. Their features are concatenated along the channels."""

    def __init__(self, encoders: Sequence[FeatureExtractor]) -> None:
        super().__init__(
            backbone=nn.ModuleList(encoders),
            config={"ensemble": [encoder.config for encoder in encoders]},
            transform=encoders[0].transform,
            feature_size=sum(encoder.feature_size for encoder in encoders),
            grid_size=encoders[0].grid_size,
            frozen=True,
        )
        self._encoders = tuple(encoders)  # with their type, which ModuleList does not keep

    def for_inference(self) -> Self:
        return type(self)([encoder.for_inference() for encoder in self._encoders])

    def forward(self, pixels: Tensor) -> Tensor:
        """Map pixels (B, 3, S, S) to features (B, L, D_1 + … + D_M)."""
        return torch.cat([encoder(pixels) for encoder in self._encoders], dim=-1)


class EnsembleDecoder(nn.Module):
    """Mean of the next-word probabilities of M decoders that share a vocabulary and the locations.

    Args:
        decoders: the M decoders.
        shares_features: whether all decoders use the same features (B, L, D); otherwise each has its own slice of
            (B, L, D_1 + … + D_M).
    """

    def __init__(self, decoders: Sequence[Decoder], shares_features: bool) -> None:
        super().__init__()
        self.decoders = nn.ModuleList(decoders)
        self._decoders = tuple(decoders)  # with their type, which ModuleList does not keep
        self.shares_features = shares_features
        self.is_hard = all(decoder.is_hard for decoder in decoders)
        self._feature_sizes = [decoder.config["feature_size"] for decoder in decoders]
        with torch.inference_mode():
            starts = [self._start_empty(decoder) for decoder in decoders]
        # Size of the last dimension of each tensor: one list per field of the tuple, with one entry per decoder.
        self._memory_sizes = [[len(x[0, 0]) for x in field] for field in _fields(memory for memory, _ in starts)]
        self._state_sizes = [[len(x[0, 0]) for x in field] for field in _fields(state for _, state in starts)]

    @staticmethod
    def _start_empty(decoder: Decoder) -> tuple[Memory, DecoderState]:
        num_locations, feature_size = decoder.config["num_locations"], decoder.config["feature_size"]
        device = next(decoder.parameters()).device
        return decoder.eval().init_state(torch.zeros(1, num_locations, feature_size, device=device))

    def init_state(self, features: Tensor) -> tuple[Memory, DecoderState]:
        """Features (B, L, ·) -> memory and initial state of all decoders, concatenated."""
        num_models = len(self._decoders)
        parts = [features] * num_models if self.shares_features else features.split(self._feature_sizes, dim=-1)
        starts = [decoder.init_state(part) for decoder, part in zip(self._decoders, parts, strict=True)]
        memory = Memory(*_concat([memory for memory, _ in starts]))
        return memory, DecoderState(*_concat([state for _, state in starts]))

    def step(
        self, token_ids: Tensor, state: DecoderState, memory: Memory, attention_fn: AttentionFn | None = None
    ) -> tuple[Tensor, DecoderState, AttentionOutput]:
        """Previous tokens (B, C) -> log-probabilities (B, C, V) of the mean, new state, mean attention weights."""
        memories, states = _split(memory, self._memory_sizes), _split(state, self._state_sizes)
        steps = [
            decoder.step(token_ids, DecoderState(*model_state), Memory(*model_memory), attention_fn)
            for decoder, model_state, model_memory in zip(self._decoders, states, memories, strict=True)
        ]
        outputs = [output for _, _, output in steps]
        log_probs = torch.stack([model_log_probs for model_log_probs, _, _ in steps]).logsumexp(dim=0) - math.log(
            len(self._decoders)
        )  # (B, C, V)
        weights = torch.stack([output.weights for output in outputs]).mean(dim=0)  # (B, C, L)
        attention = AttentionOutput(
            context=torch.cat([output.context for output in outputs], dim=-1),
            weights=weights,
            scores=weights.log(),
            locations=torch.full_like(token_ids, -1),  # all locations contribute
            context_gate=_mean_gate([output.context_gate for output in outputs]),
        )
        return log_probs, DecoderState(*_concat(model_state for _, model_state, _ in steps)), attention


def _mean_gate(gates: Sequence[Tensor | None]) -> Tensor | None:
    """Mean (B, C) of the context gates; None if a decoder has none."""
    values = [gate for gate in gates if gate is not None]
    return torch.stack(values).mean(dim=0) if len(values) == len(gates) else None


def _fields(tuples: Iterable[tuple[Tensor, ...]]) -> Iterable[tuple[Tensor, ...]]:
    """M tuples of tensors -> for each field, the M tensors."""
    return zip(*tuples, strict=True)


def _concat(tuples: Iterable[tuple[Tensor, ...]]) -> list[Tensor]:
    """Concatenate M tuples of tensors field by field, along the last dimension."""
    return [torch.cat(tensors, dim=-1) for tensors in _fields(tuples)]


def _split(fields: tuple[Tensor, ...], sizes: Sequence[Sequence[int]]) -> list[tuple[Tensor, ...]]:
    """The inverse of :func:`_concat`."""
    return list(_fields(tensor.split(list(size), dim=-1) for tensor, size in zip(fields, sizes, strict=True)))
