"""Loading of one model, or of several as an ensemble, for captioning."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from captioning.models.attention import AttentionMode
from captioning.models.calibration import Calibration
from captioning.models.checkpoint import build_modules, read_model
from captioning.models.decoder import Decoder
from captioning.models.encoder import Encoder, FeatureExtractor
from captioning.models.ensemble import EnsembleDecoder, EnsembleEncoder
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError
from captioning.utils.fork_safety import check_not_forked


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """Modules of a model or an ensemble, and the options stored with them."""

    encoder: FeatureExtractor
    decoder: Decoder | EnsembleDecoder
    vocabulary: Vocabulary
    generation: dict[str, Any]
    attention_mode: AttentionMode | None
    calibration: Calibration | None


class _SingleModel(NamedTuple):
    source: str | Path
    encoder: Encoder
    decoder: Decoder
    vocabulary: Vocabulary
    header: dict[str, Any]


def load_model(sources: Sequence[str | Path], device: str | torch.device) -> LoadedModel:
    """Load a model, or several models that share vocabulary, image transform and grid as an ensemble.

    The encoder of an ensemble is kept once if all its models have the same. The generation settings of an ensemble are
    those of the first model. It has no calibration, since its scores differ from those of its models.

    Args:
        sources: names of pretrained models, or paths of ``.safetensors`` or ``.ckpt`` files.
        device: where to put the modules.
    """
    check_not_forked()
    if not sources:
        raise CaptioningError("no model given; give the name of a pretrained model or the path of a model file")
    models = [_load_single(source, device) for source in sources]
    first, header = models[0], models[0].header
    encoder: FeatureExtractor = first.encoder
    decoder: Decoder | EnsembleDecoder = first.decoder
    attention_mode, calibration = header["attention_mode"], header["calibration"]
    if len(models) > 1:
        for model in models[1:]:
            _check_compatible(first, model)
        shares_encoder = all(_is_same_encoder(first.encoder, model.encoder) for model in models[1:])
        encoder = first.encoder if shares_encoder else EnsembleEncoder([model.encoder for model in models])
        decoder = EnsembleDecoder([model.decoder for model in models], shares_encoder)
        attention_mode, calibration = _common_attention_mode(models), None
    return LoadedModel(
        encoder=encoder,
        decoder=decoder,
        vocabulary=first.vocabulary,
        generation=header["generation"],
        attention_mode=attention_mode,
        calibration=None if calibration is None else Calibration(**calibration),
    )


def _load_single(source: str | Path, device: str | torch.device) -> _SingleModel:
    model_file = read_model(source, device)
    return _SingleModel(source, *build_modules(model_file, device), model_file.header)


def _check_compatible(first: _SingleModel, model: _SingleModel) -> None:
    values = {
        "vocabulary": (first.vocabulary.tokens, model.vocabulary.tokens),
        "image transform": (first.encoder.transform, model.encoder.transform),
        "grid of locations": (first.encoder.grid_size, model.encoder.grid_size),
    }
    for name, (first_value, value) in values.items():
        if first_value != value:
            raise CaptioningError(
                f"{model.source}: the {name} differs from that of {first.source}; an ensemble requires the same"
            )


def _is_same_encoder(first: Encoder, second: Encoder) -> bool:
    if first.config != second.config:
        return False
    state = second.state_dict()
    return all(torch.equal(tensor, state[name]) for name, tensor in first.state_dict().items())


def _common_attention_mode(models: Sequence[_SingleModel]) -> AttentionMode | None:
    """The mode of the models if all are hard and agree. Soft models support the expectation only."""
    modes = {model.header["attention_mode"] for model in models if model.decoder.is_hard}
    if len(modes) == 1 and all(model.decoder.is_hard for model in models):
        return modes.pop()
    return "expectation" if modes - {None} else None


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The given device, by default ``cuda`` if available, otherwise ``cpu``. Raises an error if it cannot be used."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
        torch.zeros(1, device=resolved).cpu()
    except Exception as error:  # each backend of torch raises its own types
        reason = str(error).splitlines()[0][:120]
        raise CaptioningError(f"device '{device}' is not available ({reason}); use 'cpu' or omit it") from None
    return resolved
