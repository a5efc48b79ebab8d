"""``captioning inspect-data``: a summary of a data set."""

import argparse
import sys
from pathlib import Path

DESCRIPTION = (
    "Summarize a data set in any layout of data/README.md: images, captions, splits, caption lengths, vocabulary "
    "coverage, and images that cannot be opened."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="its directory, or a CSV, TSV or JSONL caption file")


def run(options: argparse.Namespace) -> None:
    from captioning import datasets
    from captioning.datasets.summary import find_unreadable_images, summarize

    records = datasets.load_records(datasets.resolve_root(options.path))
    print(summarize(records), flush=True)
    errors = find_unreadable_images(records)
    for error in errors:
        print(error)
    print(f"\n{len(errors)} of {len(records)} images cannot be opened")
    if errors:
        sys.exit(2)
