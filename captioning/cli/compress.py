"""``captioning compress``: a compact copy of a model file."""

import argparse
from pathlib import Path

from captioning.cli.generation_flags import add_generation_flags, generation_options
from captioning.cli.model_checks import check_generation_flags
from captioning.models.pretrained import check_model_exists

DESCRIPTION = (
    "Write a compact copy of a model file: half precision, and only those encoder weights that differ from the "
    "pretrained ones, which every installation has. Generation settings given here are stored in the copy."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the .safetensors file of a training run")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="the file to write")
    add_generation_flags(parser)


def run(options: argparse.Namespace) -> None:
    check_model_exists(options.model)
    check_generation_flags(options, options.model)

    from captioning.captioner import Captioner

    captioner = Captioner.from_pretrained(options.model, device="cpu", **generation_options(options))
    captioner.save(options.output, compact=True)
    print(f"{options.output}: {options.output.stat().st_size / 1e6:.1f} MB")
