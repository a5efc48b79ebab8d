"""Checks of generation settings against the header of a model file, before torch is imported to load the model."""

import argparse
import json
import struct
from pathlib import Path
from typing import Any

from captioning.cli.generation_flags import generation_options
from captioning.generation.config import GenerationConfig
from captioning.models.pretrained import resolve_model_path

_MAX_HEADER_BYTES = 100_000_000  # the limit of safetensors


def check_generation_flags(options: argparse.Namespace, model: str | Path) -> None:
    """Raise CaptioningError for settings that contradict each other or those of the model, or have no effect."""
    given = {name: value for name, value in generation_options(options).items() if value is not None}
    stored = _read_generation(resolve_model_path(model))
    if stored is None:
        return
    config = GenerationConfig().replace(**{**stored, **given})
    config.check_effect(given)
    config.check_num_return_sequences(getattr(options, "num_return_sequences", None) or 1)


def _read_generation(path: Path) -> dict[str, Any] | None:
    """The generation settings in a model file of the current format; None for another file, which loading reports."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            metadata = json.loads(file.read(min(size, _MAX_HEADER_BYTES)))["__metadata__"]
        header = json.loads(metadata["captioning"])
        return header["generation"] if header["format"] == 2 else None
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None
