"""Model files: reading and writing of headers and weights. ``cli/model_checks.py`` reads headers without torch.

A model file is a ``.safetensors`` file with ``encoder.*`` and ``decoder.*`` tensors and a JSON header (see
:func:`build_model_header`). A Lightning checkpoint (``.ckpt``) contains the same header under ``model_header``.
Neither executes code when it is read.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from captioning.models import format1
from captioning.models.attention import AttentionMode
from captioning.models.backbones import has_installed_weights, init_empty_weights
from captioning.models.calibration import Calibration
from captioning.models.decoder import Decoder
from captioning.models.encoder import Encoder
from captioning.models.pretrained import check_model_exists
from captioning.preprocessing.image import ImageTransform
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.atomic_io import atomic_write
from captioning.utils.errors import CaptioningError

FORMAT = 2

_METADATA_KEY = "captioning"
_CHECKPOINT_KEY = "model_header"
_SECTIONS = ("encoder", "decoder", "transform", "vocabulary", "generation", "attention_mode")


class ModelFile(NamedTuple):
    """Contents of a model file, in the current format and in single precision."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]


def read_model(source: str | Path, device: str | torch.device = "cpu") -> ModelFile:
    """Read the name of a pretrained model, a ``.safetensors`` file, or a ``.ckpt`` file.

    Raises:
        CaptioningError: the file is missing, corrupt, no model file, or of a newer format.
    """
    header, tensors = _read_stored(check_model_exists(source), device)
    return ModelFile(header, {name: _to_float32(tensor) for name, tensor in tensors.items()})


def store_calibration(path: Path, calibration: Calibration, output: Path) -> None:
    """Write a copy of a model file with this calibration. ``output`` may be the same file. Tensors keep their type."""
    header, tensors = _read_stored(path, "cpu")
    write_model_file(output, {**header, "calibration": dataclasses.asdict(calibration)}, tensors)


def _read_stored(path: Path, device: str | torch.device) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read header and tensors, in the current format and in the precision of the file."""
    try:
        header, tensors = (_read_checkpoint if path.suffix == ".ckpt" else _read_safetensors)(path, device)
        version, calibration = int(header["format"]), header.get("calibration")
        if version == 1:
            header, tensors = format1.upgrade_header(header), format1.upgrade_tensors(tensors)
        elif version == FORMAT:
            header = {"format": FORMAT, **{name: header[name] for name in _SECTIONS}}
    except Exception:  # torch, pickle and safetensors raise many types
        raise CaptioningError(
            f"{path}: not a captioning model, or corrupt; expected a .safetensors or .ckpt file of 'captioning fit'"
        ) from None
    if version not in (1, FORMAT):
        raise CaptioningError(
            f"{path}: model format {version} is newer than format {FORMAT} of this version; update captioning"
        )
    return {**header, "calibration": calibration}, tensors


def _read_safetensors(path: Path, device: str | torch.device) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safe_open(path, framework="pt", device=str(device)) as file:
        header = json.loads(file.metadata()[_METADATA_KEY])
        names = file.keys()  # safe_open is no mapping and cannot be iterated itself
        return header, {name: file.get_tensor(name) for name in names}


def _read_checkpoint(path: Path, device: str | torch.device) -> tuple[dict[str, Any], dict[str, Tensor]]:
    checkpoint = torch.load(path, map_location=device, weights_only=True)
    return checkpoint[_CHECKPOINT_KEY], _model_tensors(checkpoint["state_dict"])


def _model_tensors(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select encoder and decoder. The state of the objective is needed for training only."""
    return {name: tensor for name, tensor in state_dict.items() if name.startswith(("encoder.", "decoder."))}


def _to_float32(tensor: Tensor) -> Tensor:
    """Convert half precision, the storage format of compact files, since few CPUs compute in it."""
    return tensor.float() if tensor.dtype == torch.float16 else tensor


def build_model_header(
    encoder: Encoder,
    decoder: Decoder,
    vocabulary: Vocabulary,
    generation: Mapping[str, Any],
    attention_mode: AttentionMode | None,
    calibration: Calibration | None = None,
) -> dict[str, Any]:
    """Return everything but the weights, as plain values.

    Args:
        encoder: encoder; ``encoder.weights`` is absent, since the file contains all its weights (but see
            :func:`compact`).
        decoder: decoder.
        vocabulary: vocabulary.
        generation: fields of ``GenerationConfig``, the defaults of the captioner.
        attention_mode: default mode of hard attention.
        calibration: map from the score of a caption to its confidence.
    """
    return {
        "format": FORMAT,
        "encoder": dict(encoder.config),
        "decoder": dict(decoder.config),
        "transform": dataclasses.asdict(encoder.transform),
        "vocabulary": list(vocabulary.tokens),
        "generation": dict(generation),
        "attention_mode": attention_mode,
        "calibration": None if calibration is None else dataclasses.asdict(calibration),
    }


def compact(model: ModelFile) -> ModelFile:
    """Return the model in half precision, without those encoder tensors that equal the pretrained weights.

    These weights are then required to load the result. A backbone whose pretrained weights are not in an installed
    package, such as a timm backbone, keeps all its tensors.
    """
    config, pretrained = dict(model.header["encoder"]), {}
    if has_installed_weights(config["backbone"]):
        config["weights"] = "pretrained"
        pretrained = {f"encoder.{name}": tensor for name, tensor in Encoder(**config).state_dict().items()}
    tensors = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in model.tensors.items()
        if name not in pretrained or not torch.equal(tensor.cpu(), pretrained[name])
    }
    return ModelFile({**model.header, "encoder": config}, tensors)


def save_model(path: Path, header: Mapping[str, Any], encoder: Encoder, decoder: Decoder, is_compact: bool) -> None:
    """Write a model file of two modules, see :func:`compact`."""
    modules = {"encoder": encoder, "decoder": decoder}
    tensors = {
        f"{prefix}.{name}": tensor for prefix, module in modules.items() for name, tensor in module.state_dict().items()
    }
    model = ModelFile(dict(header), tensors)
    write_model_file(path, *(compact(model) if is_compact else model))


def write_model_file(path: Path, header: Mapping[str, Any], state_dict: Mapping[str, Tensor]) -> None:
    """Write a model file with the ``encoder.*`` and ``decoder.*`` tensors of the state dict."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _model_tensors(state_dict).items()}
    try:
        with atomic_write(Path(path)) as temporary:
            save_file(tensors, temporary, {_METADATA_KEY: json.dumps(header)})
    except (OSError, SafetensorError) as error:
        raise CaptioningError(
            f"{path}: the model file cannot be written ({error}); check that the directory exists and is writable"
        ) from None


def build_modules(model: ModelFile, device: str | torch.device = "cpu") -> tuple[Encoder, Decoder, Vocabulary]:
    """Build the encoder and the decoder, with their weights, and the vocabulary."""
    header = model.header
    transform: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in header["transform"].items()
    }
    try:
        with init_empty_weights():
            encoder = Encoder(**header["encoder"])
            decoder = Decoder(**header["decoder"])
        encoder_state = _without_prefix(model.tensors, "encoder.")
        if header["encoder"].get("weights", "random") != "random":  # a compact file has only the trained tensors
            encoder_state = {**encoder.state_dict(), **encoder_state}
        encoder.load_state_dict(encoder_state, assign=True)
        decoder.load_state_dict(_without_prefix(model.tensors, "decoder."), assign=True)
        encoder.transform = ImageTransform(**transform)
    except (RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CaptioningError(
            f"the weights of the model do not match its header ({reason}); write the model file again"
        ) from None
    return encoder.to(device), decoder.to(device), Vocabulary(header["vocabulary"])


def _without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
