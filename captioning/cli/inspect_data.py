"""``captioning inspect-data``: a summary of one or several datasets."""

import argparse
import sys
from pathlib import Path

DESCRIPTION = (
    "Summarize one or several datasets in any layout of data/README.md: images, captions, splits, caption lengths, "
    "vocabulary coverage, and images that cannot be opened."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="dataset directory, or a CSV, TSV or JSONL caption file"
    )


def run(options: argparse.Namespace) -> None:
    from captioning.datasets.mixture import DatasetConfig, load_mixture
    from captioning.datasets.summary import find_unreadable_images, summarize

    configs = [DatasetConfig(path) for path in options.paths]
    records = load_mixture(configs)
    if len(configs) > 1:
        for config in configs:
            dataset_records = [record for record in records if record.dataset == config.label]
            print(f"{config.label}\n{summarize(dataset_records)}\n", flush=True)
        print("all datasets")
    print(summarize(records), flush=True)
    errors = find_unreadable_images(records)
    for error in errors:
        print(error)
    print(f"\n{len(errors)} of {len(records)} images cannot be opened")
    if errors:
        sys.exit(2)
