"""``captioning calibrate``: calibrates the confidence of a model on reference captions."""

import argparse
from pathlib import Path

from captioning.models.pretrained import check_model_exists
from captioning.utils.errors import CaptioningError

DESCRIPTION = (
    "Calibrate the confidence of a model (Platt scaling): caption the images of a split, fit the probability that a "
    "caption is good as a function of its score, print reliability bins, and store the fit in the model file. A "
    "caption is good if its CIDEr-D exceeds --threshold. Use images that the model was not trained on."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a pretrained model or a .safetensors file")
    parser.add_argument(
        "--data", nargs="+", type=Path, required=True, metavar="DIR", help="datasets, see data/README.md"
    )
    parser.add_argument("--split", default="val", help="train, val or test (default val)")
    parser.add_argument("--num-images", type=int, metavar="N", help="first N images of each dataset (default all)")
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.5,
        metavar="X",
        help="CIDEr-D above which a caption counts as good (default %(default)s)",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write a calibrated copy instead of replacing the model file"
    )


def run(options: argparse.Namespace) -> None:
    path = check_model_exists(options.model)
    if path.suffix == ".ckpt":
        raise CaptioningError(f"{path}: a checkpoint cannot be calibrated; use the .safetensors file beside it")

    from captioning import datasets
    from captioning.captioner import Captioner
    from captioning.evaluation.calibration import calibrate
    from captioning.models.checkpoint import store_calibration

    records = [
        record for root in options.data for record in datasets.load_split(root, options.split, options.num_images)
    ]
    report = calibrate(Captioner.from_pretrained(path), records, options.threshold)
    output = options.output or path
    store_calibration(path, report.calibration, output)
    print(report.to_text())
    print(f"calibrated: {output}")
