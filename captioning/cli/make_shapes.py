"""``captioning make-shapes``: a dataset of synthetic scenes."""

import argparse
from pathlib import Path

DESCRIPTION = "Generate scenes of colored shapes with five captions each: JPEG files and one JSON in Karpathy's layout."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", type=Path, metavar="DIR", help="a directory that does not exist yet")
    parser.add_argument("--num-images", type=int, default=1000, metavar="N", help="number of scenes (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the scenes (default 0)")


def run(options: argparse.Namespace) -> None:
    from captioning.datasets.synthetic import shapes

    shapes.generate_dataset(options.root, options.num_images, options.seed)
    print(f"{options.num_images} scenes in {options.root}; captions in {options.root / 'dataset.json'}")
