"""``captioning score``: metrics for the captions of any system."""

import argparse
import json
from pathlib import Path

from captioning.utils.errors import CaptioningError

DESCRIPTION = (
    "Score captions against references: BLEU, ROUGE-L, CIDEr-D, METEOR (with the extra 'eval') and diversity. "
    "Captions: COCO results JSON, Karpathy's JSON, the JSONL of 'captioning predict', or text with one line per image. "
    "References: COCO annotations JSON, Karpathy's JSON, a directory in any layout of data/README.md, or text with one "
    "line per image and tabs between its references."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("captions", nargs="+", type=Path, metavar="CAPTIONS", help="one system, or two to compare")
    parser.add_argument("references", type=Path, metavar="REFERENCES", help="reference captions")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument(
        "--bootstrap", action="store_true", help="report 95%% bootstrap confidence intervals (resampling images)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed of the bootstrap (default 0)")


def run(options: argparse.Namespace) -> None:
    if len(options.captions) > 2:
        raise CaptioningError(f"expected one or two files of captions, got {len(options.captions)}")
    if not 0 <= options.seed < 2**32:
        raise CaptioningError(f"--seed must be in [0, {2**32 - 1}], got {options.seed}")

    from captioning.evaluation import scoring

    report = scoring.score_files(options.captions, options.references, options.bootstrap, options.seed)
    print(json.dumps(report.to_dict()) if options.json else report.to_table())
