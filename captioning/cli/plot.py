"""``captioning plot``: curves of a training run."""

import argparse
from pathlib import Path

from captioning.utils.errors import CaptioningError

DESCRIPTION = (
    "Plot the training and validation curves of runs from their metrics.csv, one panel per metric. Several runs share "
    "the panels. Requires matplotlib: pip install 'captioning[plots]'."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="directory of a run, such as runs/x/version_0"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="image file, PNG, PDF or SVG (default RUN/metrics.png)"
    )


def run(options: argparse.Namespace) -> None:
    from captioning.evaluation.curves import plot_runs

    output = options.output or options.runs[0] / "metrics.png"
    try:
        plot_runs(options.runs, output)
    except ModuleNotFoundError as error:
        raise CaptioningError(f"'plot' requires {error.name}: pip install 'captioning[plots]'") from None
    print(f"curves: {output}")
