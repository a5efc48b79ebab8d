"""Export of a whole model to ONNX, for captioning without PyTorch; :mod:`captioning.models.exported_model` reads it."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from captioning.models.attention import AttentionMode, make_attention_fn
from captioning.models.calibration import Calibration
from captioning.models.decoder import Decoder
from captioning.models.decoder_output import DecoderState
from captioning.models.encoder import Encoder
from captioning.models.engine import TOLERANCE, OnnxEngine, max_deviation
from captioning.models.exported_model import DECODER_START, DECODER_STEP, ENCODER, MODEL_JSON, create_session
from captioning.models.onnx_export import export_decoder, export_encoder
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.atomic_io import atomic_write
from captioning.utils.errors import CaptioningError

FORMAT = 1
_NUM_IMAGES, _NUM_BEAMS = 3, 5  # of the verification; the exporter traces other numbers


def export_model(
    encoder: Encoder,
    decoder: Decoder,
    vocabulary: Vocabulary,
    output_dir: Path,
    *,
    generation: dict[str, Any],
    attention_mode: AttentionMode | None,
    calibration: Calibration | None = None,
    receptive_field: tuple[float, float] | None = None,
    cached_cnn: Path | None = None,
) -> float:
    """Write a model to a directory and compare its results with those of PyTorch.

    Args:
        encoder: on the CPU.
        decoder: on the CPU.
        vocabulary: vocabulary.
        output_dir: created if it does not exist.
        generation: fields of ``GenerationConfig``.
        attention_mode: of hard attention; None selects the default of the decoder.
        calibration: map from the score of a caption to its confidence.
        receptive_field: of a location, if each word attends to a single one.
        cached_cnn: file of the inference engine, to link to instead of an export. The decoder is then optimized for
            the installed version of ONNX Runtime, as the CNN is.

    Returns:
        The maximum deviation of features, log-probabilities and attention weights.
    """
    if attention_mode == "sample":
        raise CaptioningError("attention_mode 'sample' cannot be exported; use 'argmax' or 'expectation'")
    attention_fn = make_attention_fn(attention_mode, torch.Generator())
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        if cached_cnn is None:
            export_encoder(encoder.for_inference(), output_dir / ENCODER)
        else:
            _link(cached_cnn, output_dir / ENCODER)
        engine = OnnxEngine(output_dir / ENCODER)
        features = _example_features(engine, encoder.transform.image_size)
        names = export_decoder(decoder, features, output_dir / DECODER_START, output_dir / DECODER_STEP, attention_fn)
        if cached_cnn is not None:
            _optimize(output_dir / DECODER_START)
            _optimize(output_dir / DECODER_STEP)
        header = {
            "format": FORMAT,
            "image_size": encoder.transform.image_size,
            "transform": dataclasses.asdict(encoder.transform),
            "grid_size": list(encoder.grid_size),
            "receptive_field": receptive_field,
            "special_tokens": {
                "pad": Vocabulary.PAD_ID,
                "start": Vocabulary.BOS_ID,
                "end": Vocabulary.EOS_ID,
                "unknown": Vocabulary.UNK_ID,
            },
            "memory": names["memory"],
            "state": names["state"],
            "generation": generation,
            "calibration": None if calibration is None else dataclasses.asdict(calibration),
            "vocabulary": vocabulary.tokens,
        }
        with atomic_write(output_dir / MODEL_JSON) as temporary:
            temporary.write_text(json.dumps(header, ensure_ascii=False, indent=1), encoding="utf-8")
    except OSError as error:
        raise CaptioningError(f"{output_dir}: cannot be written ({error}); choose another directory") from None
    deviation = _decoder_deviation(decoder, features, attention_fn, names, output_dir)
    if cached_cnn is None:  # otherwise the engine has compared it
        deviation = max(deviation, max_deviation(encoder, engine))
    if not deviation <= TOLERANCE:
        raise CaptioningError(
            f"{output_dir}: the exported model deviates from PyTorch by {deviation:.1e}, more than {TOLERANCE:.0e}; "
            "do not use it"
        )
    return deviation


def _link(source: Path, target: Path) -> None:
    """Link to a file, so that it is stored once, or copy it where the file system has no links."""
    try:
        target.hardlink_to(source)
    except (OSError, NotImplementedError):
        shutil.copyfile(source, target)


def _optimize(path: Path) -> None:
    """Replace an exported file by its optimized graph, which loads faster."""
    optimized = path.with_suffix(".optimized")
    create_session(path, optimized)
    optimized.replace(path)


def _example_features(engine: OnnxEngine, size: int) -> Tensor:
    """Features (B, L, D) of noise images."""
    return engine(torch.randn(_NUM_IMAGES, 3, size, size, generator=torch.Generator().manual_seed(1)))


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
            gates = [] if attention.context_gate is None else [attention.context_gate]
            for result, expected in zip(results, (log_probs, attention.weights, *state, *gates), strict=True):
                if result.shape != tuple(expected.shape):
                    raise CaptioningError(f"{output_dir}: the exported model does not accept any number of images")
                deviation = max(deviation, float((torch.from_numpy(result) - expected).abs().max()))
    return deviation
