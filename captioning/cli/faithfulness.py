"""``captioning faithfulness``: occlusion test of attention maps."""

import argparse
from pathlib import Path

DESCRIPTION = (
    "Occlude the locations that a word attended to and measure how much its log-probability drops, compared with the "
    "map of another image, random locations, the least attended ones, and the same model with uniform attention."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a pretrained model or a .safetensors file")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="dataset, see data/README.md")
    parser.add_argument("--split", default="val", help="train, val or test (default val)")
    parser.add_argument("--num-images", type=int, default=100, metavar="N", help="first N images (default 100)")
    parser.add_argument(
        "--plot",
        type=Path,
        default=Path("faithfulness.png"),
        metavar="FILE",
        help="deletion and insertion curves; all values go to a JSON file beside it (default %(default)s)",
    )


def run(options: argparse.Namespace) -> None:
    from captioning import datasets
    from captioning.captioner import Captioner
    from captioning.evaluation import faithfulness_report

    records = datasets.load_split(options.data, options.split, options.num_images)
    reports = {
        Path(model).stem: faithfulness_report.evaluate_model(Captioner.from_pretrained(model), records)
        for model in options.models
    }
    print(faithfulness_report.to_markdown(reports), flush=True)
    for path in faithfulness_report.save_report(options.plot, reports):
        print(f"report: {path}")
