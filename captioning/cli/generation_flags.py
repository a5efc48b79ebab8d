"""Command-line flags of the generation settings, derived from ``GenerationConfig``."""

import argparse
import dataclasses
from typing import Any

from captioning.generation.config import GenerationConfig


def add_generation_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag per field of ``GenerationConfig``. Flags that are not given keep the model's own settings."""
    group = parser.add_argument_group("generation settings (default: those the model was validated with)")
    for field in dataclasses.fields(GenerationConfig):
        flag = "--" + field.name.replace("_", "-")
        text = field.metadata["help"]
        if field.type is bool:
            group.add_argument(flag, action="store_true", default=None, help=text)
        else:
            metavar = "N" if field.type is int else "X"
            group.add_argument(flag, type=field.type, metavar=metavar, help=text)


def generation_options(options: argparse.Namespace) -> dict[str, Any]:
    """The generation settings that were given, within their bounds; None where a flag is absent."""
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(GenerationConfig)}
    for name, value in given.items():
        if value is not None:
            GenerationConfig.check_bounds(name, value)
    return given
