"""Upgrade of model files of format 1 (the models of Flickr8k) to format 2: a map of header keys and tensor names.

Format 1 has other names for the settings and layers, keeps generation settings at the top level of the header, and uses
0 where format 2 uses null.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

_ENCODER_KEYS = {"name": "backbone", "fit": "resize_mode"}
_TRANSFORM_KEYS = {"size": "image_size", "fit": "resize_mode"}
_DECODER_KEYS = {
    "annotation_size": "feature_size",
    "places": "num_locations",
    "squash": "projection_size",
    "temperature": "attention_temperature",
    "score": "attention_score",
    "wiring": "architecture",
    "gate": "context_gate",
    "neighbours": "feature_mixer",
    "tied": "tie_word_embeddings",
    "dropout_by": "spatial_dropout",
    "place_dropout": "location_dropout",
}
_DECODER_VALUES: dict[str, dict[Any, Any]] = {
    "projection_size": {0: None},
    "architecture": {"paper": "show_attend_tell"},
    "feature_mixer": {"bidirectional_lstm": "bilstm"},
    "spatial_dropout": {"place": False, "picture": True},
}
_GENERATION_KEYS = {
    "maximum_length": "max_length",
    "minimum_length": "min_length",
    "no_repeat": "no_repeat_ngram_size",
    "beam": "num_beams",
    "length_penalty": "length_penalty",
    "groups": "num_beam_groups",
    "diversity": "diversity_penalty",
    "sample": "do_sample",
    "temperature": "temperature",
    "top_k": "top_k",
    "nucleus": "top_p",
}
_TENSOR_PREFIXES = {
    "encoder.network.pixels.": "encoder.backbone.stem.",  # the backbone 'tiny'
    "encoder.network.places.": "encoder.backbone.head.",
    "encoder.network.": "encoder.backbone.",
    "decoder.squash.": "decoder.projection.",
    "decoder.neighbours.mix.": "decoder.feature_mixer.mixer.",
    "decoder.neighbours.": "decoder.feature_mixer.",
    "decoder.attention.score.key.": "decoder.attention.score_fn.key_proj.",
    "decoder.attention.score.query.": "decoder.attention.score_fn.query_proj.",
    "decoder.attention.score.score.": "decoder.attention.score_fn.energy_proj.",
    "decoder.gate.": "decoder.context_gate.",
    "decoder.start_hidden.": "decoder.init_hidden.",
    "decoder.start_cell.": "decoder.init_cell.",
    "decoder.word_gates.": "decoder.input_proj.",
    "decoder.state_gates.": "decoder.hidden_proj.",
    "decoder.context_gates.": "decoder.context_proj.",
    "decoder.combine.": "decoder.attentional_hidden.",
}


def upgrade_header(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the header in format 2."""
    encoder = _rename(header["encoder"], _ENCODER_KEYS)
    if "encoder_weights" in header:
        encoder["weights"] = header["encoder_weights"]
    decoder = _rename(header["decoder"], _DECODER_KEYS)
    for key, values in _DECODER_VALUES.items():
        if key in decoder:
            decoder[key] = values.get(decoder[key], decoder[key])
    # Format 2 refuses settings without effect, which format 1 stores.
    if decoder.get("attention") == "soft":
        decoder.pop("attention_temperature", None)
    if decoder.get("attention_score") not in ("additive", "scaled_dot"):
        decoder.pop("attention_size", None)
    attention_mode = header.get("look")
    return {
        "format": 2,
        "encoder": encoder,
        "decoder": decoder,
        "transform": _rename(header["transform"], _TRANSFORM_KEYS),
        "vocabulary": header["vocabulary"],
        "generation": {new: header[old] for old, new in _GENERATION_KEYS.items() if old in header},
        "attention_mode": "expectation" if attention_mode == "expect" else attention_mode,
    }


def upgrade_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under their names in format 2."""
    return {_rename_tensor(name): tensor for name, tensor in tensors.items()}


def _rename_tensor(name: str) -> str:
    for old, new in _TENSOR_PREFIXES.items():  # longer prefixes come first
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _rename(values: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    return {keys.get(key, key): value for key, value in values.items()}
