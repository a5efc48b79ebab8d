"""``captioning export``: a model as ONNX files, for captioning without PyTorch."""

import argparse
from pathlib import Path

from captioning.cli.generation_flags import add_generation_flags, generation_options
from captioning.models.pretrained import PRETRAINED

DESCRIPTION = (
    "Write a model as ONNX files (CNN, decoder start, decoder step) and a JSON file (vocabulary, image transform, "
    "generation settings), for C++, JavaScript or mobile: see docs/export.md. The files are compared with PyTorch. "
    "Generation settings given here are stored in the JSON file."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=f"a pretrained model ({', '.join(PRETRAINED)}) or a model file")
    parser.add_argument("output_dir", type=Path, metavar="DIR", help="output directory, created if it does not exist")
    parser.add_argument(
        "--attention-mode",
        choices=("expectation", "argmax"),
        help="attention mode of a hard-attention model (default: that of the model)",
    )
    add_generation_flags(parser)


def run(options: argparse.Namespace) -> None:
    from captioning.captioner import Captioner

    captioner = Captioner.from_pretrained(
        options.model, device="cpu", attention_mode=options.attention_mode, **generation_options(options)
    )
    deviation = captioner.export(options.output_dir)
    size = sum(file.stat().st_size for file in options.output_dir.iterdir()) / 1e6
    print(f"{options.output_dir}: {size:.1f} MB, maximum deviation from PyTorch {deviation:.1e}")
