"""Exported models in ONNX Runtime, on NumPy arrays. This module does not import torch.

A directory with ``encoder.onnx``, ``decoder_start.onnx``, ``decoder_step.onnx`` and ``model.json``, as written by
:mod:`captioning.models.onnx_model`. docs/export.md documents the inputs, the outputs and the JSON file.

Shapes: B images, K beams per image, L locations, D feature size, V vocabulary size, H hidden size.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from captioning.models.calibration import Calibration
from captioning.models.decoder_output import DecoderState, Memory
from captioning.preprocessing.image import ImageTransform
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.threads import current_num_threads

ENCODER, DECODER_START, DECODER_STEP, MODEL_JSON = (
    "encoder.onnx",
    "decoder_start.onnx",
    "decoder_step.onnx",
    "model.json",
)
_CHUNK_SIZE = 8  # activations of 8 images fit into the CPU caches


class StepAttention(NamedTuple):
    """Attention of one step."""

    weights: np.ndarray  # (B, K, L)
    context_gate: np.ndarray | None  # (B, K); None without a gate


class OnnxEncoder:
    """Maps pixels (B, 3, S, S) to features (B, L, D) in ONNX Runtime. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._session = create_session(path)

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        chunks = [pixels[first : first + _CHUNK_SIZE] for first in range(0, len(pixels), _CHUNK_SIZE)]
        return np.concatenate([self._session.run(None, {"pixels": chunk})[0] for chunk in chunks])


class ExportedModel:
    """A model of ``captioning export``. Implements :class:`captioning.generation.step_decoder.StepDecoder`.

    Args:
        directory: directory of the exported model.
    """

    def __init__(self, directory: Path) -> None:
        header = json.loads((directory / MODEL_JSON).read_text(encoding="utf-8"))
        transform, calibration, field = header["transform"], header["calibration"], header["receptive_field"]
        self.transform = ImageTransform(**transform)
        self.grid_size: tuple[int, int] = tuple(header["grid_size"])
        self.vocabulary = Vocabulary(header["vocabulary"])
        self.generation: dict[str, Any] = header["generation"]
        self.calibration = None if calibration is None else Calibration(**calibration)
        self.receptive_field: tuple[float, float] | None = None if field is None else tuple(field)
        self.encode = OnnxEncoder(directory / ENCODER)
        self._start, self._step = (create_session(directory / name) for name in (DECODER_START, DECODER_STEP))

    def init_state(self, features: np.ndarray) -> tuple[Memory, DecoderState]:
        """Features (B, L, D) -> memory with arrays (B, ...), initial state with arrays (B, 1, H)."""
        arrays = self._start.run(None, {"encoder_features": features})
        num_memory = len(Memory._fields)
        return Memory(*arrays[:num_memory]), DecoderState(*arrays[num_memory:])

    def step(
        self, token_ids: np.ndarray, state: DecoderState, memory: Memory, attention_fn: None = None
    ) -> tuple[np.ndarray, DecoderState, StepAttention]:
        """Previous tokens (B, K) -> log-probabilities (B, K, V), new state, attention of the exported mode."""
        inputs = {"token_ids": token_ids, **state._asdict(), **memory._asdict()}
        log_probs, weights, *arrays = self._step.run(None, inputs)
        num_states = len(DecoderState._fields)
        (gates,) = arrays[num_states:] or [None]
        return log_probs, DecoderState(*arrays[:num_states]), StepAttention(weights, gates)


def create_session(path: Path, optimized_path: Path | None = None) -> Any:
    """Open an ONNX file for the CPU. If ``optimized_path`` is given, write the optimized graph to it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = current_num_threads()
    options.log_severity_level = 4  # errors are raised
    # Threads that spin while they wait take the time of those that decode images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if optimized_path is not None:
        # The optimizations of this level do not depend on the CPU, so the cache may be shared by several machines.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(optimized_path)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
