"""``captioning average``: average of the weights of several models."""

import argparse
from pathlib import Path

from captioning.models.pretrained import check_model_exists

DESCRIPTION = (
    "Average the weights of models that were trained from the same initial weights. The average of several runs is "
    "often better than each of them; that of a pretrained and a fine-tuned model reduces forgetting."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a pretrained model or a model file; at least two")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="the .safetensors file to write")
    parser.add_argument(
        "--weights", nargs="+", type=float, metavar="W", help="one weight per model (default: equal weights)"
    )


def run(options: argparse.Namespace) -> None:
    for model in options.models:
        check_model_exists(model)

    from captioning.models.weight_average import average_models

    average_models(options.models, options.weights, options.output)
    print(f"{options.output}: average of {len(options.models)} models")
