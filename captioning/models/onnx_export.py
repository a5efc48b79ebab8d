"""Export of encoders and decoders to ONNX, with dynamic numbers of images and beams."""

import contextlib
import copy
import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from captioning.models.attention import AttentionFn
from captioning.models.backbone_utils import fix_padding_
from captioning.models.decoder import Decoder
from captioning.models.encoder import FeatureExtractor

_OPSET = 17
_NUM_EXAMPLE_IMAGES, _NUM_EXAMPLE_BEAMS = 2, 3  # the traced sizes; 1 would be taken for a broadcast dimension


class DecoderStart(nn.Module):
    """Features (B, L, D) -> the arrays of the memory (B, ...) and of the initial state (B, 1, H)."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        memory, state = self.decoder.init_state(features)
        return (*memory, *state)


class DecoderStep(nn.Module):
    """Previous tokens (B, K), state, memory -> log-probabilities (B, K, V), attention weights (B, K, L), new state and,
    if the decoder has a context gate, its mean (B, K).

    Args:
        decoder: decoder.
        memory: an example of its memory, for the names of the arrays.
        state: an example of its state.
        attention_fn: attention function; None selects the default of the decoder.
    """

    def __init__(self, decoder: Decoder, memory: Any, state: Any, attention_fn: AttentionFn | None) -> None:
        super().__init__()
        self.decoder = decoder
        self.make_memory, self.make_state = memory._make, state._make
        self.num_states = len(state)
        self.attention_fn = attention_fn

    def forward(self, token_ids: Tensor, *arrays: Tensor) -> tuple[Tensor, ...]:
        state, memory = self.make_state(arrays[: self.num_states]), self.make_memory(arrays[self.num_states :])
        log_probs, state, attention = self.decoder.step(token_ids, state, memory, self.attention_fn)
        gates = [] if attention.context_gate is None else [attention.context_gate]
        return (log_probs, attention.weights, *state, *gates)


def export_encoder(extractor: FeatureExtractor, path: Path) -> None:
    """Write ``pixels`` (B, 3, S, S) -> ``features`` (B, L, D)."""
    size = extractor.transform.image_size
    pixels = torch.zeros(_NUM_EXAMPLE_IMAGES, 3, size, size)
    extractor = copy.deepcopy(extractor).eval()
    fix_padding_(extractor, pixels)
    # With gradients enabled the extractor does not split the batch, whose size must remain dynamic. ONNX Runtime fuses
    # BatchNorm itself.
    with torch.enable_grad():
        _export(extractor, (pixels,), path, ["pixels"], ["features"], {"pixels": ["batch"], "features": ["batch"]})


def export_decoder(
    decoder: Decoder, features: Tensor, start_path: Path, step_path: Path, attention_fn: AttentionFn | None = None
) -> dict[str, list[str]]:
    """Write the initial state and one step of a decoder.

    Args:
        decoder: in eval mode, on the CPU.
        features: (B, L, D), any features; those of two images are traced.
        start_path: file of :class:`DecoderStart`.
        step_path: file of :class:`DecoderStep`.
        attention_fn: attention function; None selects the default of the decoder.

    Returns:
        Names of the arrays of ``memory`` and ``state``. The outputs of the step have the prefix ``next_``.
    """
    features = features[:_NUM_EXAMPLE_IMAGES]
    with torch.no_grad():
        memory, state = decoder.init_state(features)
        memory_names, state_names = list(memory._fields), list(state._fields)
        axes = {name: ["batch"] for name in ("encoder_features", *memory_names, *state_names)}
        # The features of the memory are projected, so the encoder's have another name.
        _export(DecoderStart(decoder), (features,), start_path, ["encoder_features"], memory_names + state_names, axes)
        step = DecoderStep(decoder, memory, state, attention_fn)
        token_ids = torch.ones(len(features), _NUM_EXAMPLE_BEAMS, dtype=torch.int64)
        expanded = [array.expand(-1, _NUM_EXAMPLE_BEAMS, -1).contiguous() for array in state]
        next_names = [f"next_{name}" for name in state_names]
        outputs = ["log_probs", "attention_weights", *next_names]
        if decoder.context_gate is not None:
            outputs.append("context_gates")
        axes = {name: ["batch", "beams"] for name in ("token_ids", *state_names, *outputs)}
        axes |= {name: ["batch"] for name in memory_names}
        _export(
            step, (token_ids, *expanded, *memory), step_path, ["token_ids", *state_names, *memory_names], outputs, axes
        )
    return {"memory": memory_names, "state": state_names}


def _export(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    path: Path,
    input_names: Sequence[str],
    output_names: Sequence[str],
    axes: Mapping[str, Sequence[str]],
) -> None:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # the tracer warns about shapes that are constants, as the number of locations
        torch.onnx.export(
            module.eval(),
            inputs,
            path,
            input_names=input_names,
            output_names=output_names,
            dynamic_axes={name: dict(enumerate(names)) for name, names in axes.items()},
            opset_version=_OPSET,
            dynamo=False,  # the exporter based on torch._dynamo takes longer, and requires onnxscript
        )
