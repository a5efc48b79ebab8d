"""``captioning grounding``: attention maps compared with boxes of objects."""

import argparse
import json
from pathlib import Path

from captioning.utils.errors import CaptioningError

DESCRIPTION = (
    "Caption images with boxes. For each word that names an object with a box, measure whether the attention map "
    "points at the box and how much attention lies in it, compared with the image center, the maps of other words, and "
    "uniform attention. 95% confidence intervals are bootstrapped over images."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a pretrained model or a .safetensors file")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="dataset with boxes, see data/README.md"
    )
    parser.add_argument("--split", default="test", help="train, val or test (default test)")
    parser.add_argument(
        "--held-out-boxes",
        type=int,
        default=0,
        metavar="N",
        help="held_out_boxes of the training config: N training images with boxes belong to the split test (default 0)",
    )
    parser.add_argument("--num-images", type=int, default=500, metavar="N", help="first N images (default 500)")
    parser.add_argument(
        "--slack",
        type=float,
        default=0.03,
        metavar="FRACTION",
        help="extend boxes for pointing by this fraction of the shorter image side (default 0.03)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all values to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a figure of good and bad cases (first model)")


def run(options: argparse.Namespace) -> None:
    if options.num_images < 1:
        raise CaptioningError(f"--num-images must be >= 1, got {options.num_images}")

    from captioning import datasets
    from captioning.captioner import Captioner
    from captioning.datasets.boxes import boxes_by_category, hold_out_boxes
    from captioning.evaluation import grounding, grounding_report

    all_records = datasets.load_records(datasets.resolve_root(options.data))
    categories = {category for record in all_records for category in boxes_by_category(record.boxes or ())}
    records = hold_out_boxes(all_records, options.held_out_boxes)
    records = [record for record in records if record.split == options.split and record.boxes][: options.num_images]
    if not records:
        raise CaptioningError(
            f"{options.data}: no images with boxes in split '{options.split}'; data/README.md describes where boxes "
            "belong; --held-out-boxes moves training images to the split test"
        )
    results = {
        Path(model).stem: grounding.measure_grounding(
            Captioner.from_pretrained(model), records, categories, options.slack
        )
        for model in options.models
    }
    reports = {model: grounding_report.summarize(model_results) for model, model_results in results.items()}
    print(grounding_report.to_markdown(reports), flush=True)
    try:
        if options.json is not None:
            content = {model: report.to_dict() for model, report in reports.items()}
            options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            print(f"report: {options.json}")
        if options.plot is not None and grounding_report.plot_examples(options.plot, next(iter(results.values()))):
            print(f"figure: {options.plot}")
    except (OSError, ValueError) as error:  # ValueError: matplotlib does not know the file format
        raise CaptioningError(f"the report cannot be written ({error}); choose another file") from None
