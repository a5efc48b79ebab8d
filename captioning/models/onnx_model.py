"""Export of a whole model to ONNX, for captioning without PyTorch.

A directory with ``encoder.onnx``, ``decoder_start.onnx``, ``decoder_step.onnx`` and ``model.json``. docs/export.md
documents the inputs, the outputs and the JSON file.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from captioning.models.attention import AttentionMode, make_attention_fn
from captioning.models.decoder import Decoder
from captioning.models.decoder_output import DecoderState
from captioning.models.encoder import Encoder
from captioning.models.engine import TOLERANCE, OnnxEncoder, create_session, max_deviation
from captioning.models.onnx_export import export_decoder, export_encoder
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.atomic_io import atomic_write
from captioning.utils.errors import CaptioningError

FORMAT = 1
ENCODER, DECODER_START, DECODER_STEP, MODEL_JSON = (
    "encoder.onnx",
    "decoder_start.onnx",
    "decoder_step.onnx",
    "model.json",
)
_NUM_IMAGES, _NUM_BEAMS = 3, 5  # of the verification; the exporter traces other numbers


def export_model(
    encoder: Encoder,
    decoder: Decoder,
    vocabulary: Vocabulary,
    generation: dict[str, Any],
    attention_mode: AttentionMode | None,
    output_dir: Path,
) -> float:
    """Write a model to a directory and compare its results with those of PyTorch.

    Args:
        encoder: on the CPU.
        decoder: on the CPU.
        vocabulary: vocabulary.
        generation: fields of ``GenerationConfig``.
        attention_mode: of hard attention; None selects the default of the decoder.
        output_dir: created if it does not exist.

    Returns:
        The maximum deviation of features, log-probabilities and attention weights.
    """
    if attention_mode == "sample":
        raise CaptioningError("attention_mode 'sample' cannot be exported; use 'argmax' or 'expectation'")
    attention_fn = make_attention_fn(attention_mode, torch.Generator())
    encoder = encoder.for_inference()
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        export_encoder(encoder, output_dir / ENCODER)
        features = _example_features(encoder)
        names = export_decoder(decoder, features, output_dir / DECODER_START, output_dir / DECODER_STEP, attention_fn)
        header = {
            "format": FORMAT,
            "image_size": encoder.transform.image_size,
            "transform": dataclasses.asdict(encoder.transform),
            "grid_size": list(encoder.grid_size),
            "special_tokens": {
                "pad": Vocabulary.PAD_ID,
                "start": Vocabulary.BOS_ID,
                "end": Vocabulary.EOS_ID,
                "unknown": Vocabulary.UNK_ID,
            },
            "memory": names["memory"],
            "state": names["state"],
            "generation": generation,
            "vocabulary": vocabulary.tokens,
        }
        with atomic_write(output_dir / MODEL_JSON) as temporary:
            temporary.write_text(json.dumps(header, ensure_ascii=False, indent=1), encoding="utf-8")
    except OSError as error:
        raise CaptioningError(f"{output_dir}: cannot be written ({error}); choose another directory") from None
    deviation = max(
        max_deviation(encoder, OnnxEncoder(output_dir / ENCODER)),
        _decoder_deviation(decoder, features, attention_fn, names, output_dir),
    )
    if not deviation <= TOLERANCE:
        raise CaptioningError(
            f"{output_dir}: the exported model deviates from PyTorch by {deviation:.1e}, more than {TOLERANCE:.0e}; "
            "do not use it"
        )
    return deviation


def _example_features(encoder: Encoder) -> Tensor:
    size = encoder.transform.image_size
    pixels = torch.randn(_NUM_IMAGES, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return encoder(pixels)  # (B, L, D)


def _decoder_deviation(
    decoder: Decoder, features: Tensor, attention_fn: Any, names: dict[str, list[str]], output_dir: Path
) -> float:
    """Maximum difference of log-probabilities and attention weights in the first two steps."""
    start, step = (create_session(output_dir / name) for name in (DECODER_START, DECODER_STEP))
    memory_names, state_names = names["memory"], names["state"]
    arrays = dict(zip(memory_names + state_names, start.run(None, {"encoder_features": features.numpy()}), strict=True))
    deviation = 0.0
    with torch.no_grad():
        memory, state = decoder.init_state(features)
        for num_beams in (1, _NUM_BEAMS):
            state = DecoderState(*(tensor[:, :1].expand(-1, num_beams, -1) for tensor in state))
            arrays |= {name: tensor.contiguous().numpy() for name, tensor in zip(state_names, state, strict=True)}
            token_ids = (
                torch.arange(_NUM_IMAGES * num_beams).view(_NUM_IMAGES, num_beams) % decoder.config["vocabulary_size"]
            )
            log_probs, state, attention = decoder.step(token_ids, state, memory, attention_fn)
            results = step.run(None, {"token_ids": token_ids.numpy(), **arrays})
            for result, expected in zip(results, (log_probs, attention.weights, *state), strict=True):
                if result.shape != tuple(expected.shape):
                    raise CaptioningError(f"{output_dir}: the exported model does not accept any number of images")
                deviation = max(deviation, float((torch.from_numpy(result) - expected).abs().max()))
    return deviation
