"""Ablation of attention maps: grid, activation of the attention weights, and box supervision, at equal data and steps.

    python -m benchmarks.attention_ablation --data coco

Each run is ``captioning fit --config configs/photos-soft.yaml`` on one dataset with boxes, from scratch. Its maps are
measured on training images with boxes that are held out. A run that has a result is not repeated, so that the command
continues after an interruption, and ``--grids`` divides the runs among processes. Arguments that are not listed below
go to ``fit``.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.training_runs import CALLBACKS, logger_arguments, read_metrics
from captioning import datasets
from captioning.captioner import Captioner
from captioning.datasets.boxes import boxes_by_category, hold_out_boxes
from captioning.datasets.record import Record
from captioning.evaluation import faithfulness_report
from captioning.evaluation.grounding import measure_grounding
from captioning.evaluation.grounding_report import summarize
from captioning.evaluation.tables import markdown_table
from captioning.training.cli import main as training_cli

CONFIG = Path(__file__).parents[1] / "configs" / "photos-soft.yaml"
OUTPUT_STRIDES = {"8×8": 32, "16×16": 16}
ACTIVATIONS = ("softmax", "sparsemax", "entmax15")
BOX_SUPERVISION = {"class_path": "captioning.objectives.BoxSupervision", "init_args": {"weight": 8.0}}
METRICS = ("cider_d", "pointing", "pointing, small", "mass", "faithfulness", "minutes")


class Variant(NamedTuple):
    """Settings of a run."""

    grid: str
    activation: str
    supervised: bool


BASE = Variant("8×8", "softmax", supervised=False)


def fit(variant: Variant, seed: int, run_dir: Path, options: argparse.Namespace, further: Sequence[str]) -> float:
    """Train a model of this variant, and return the minutes without those of the feature cache."""
    terms = [BOX_SUPERVISION] if variant.supervised else []
    objective = {
        "class_path": "captioning.objectives.CrossEntropy",
        "init_args": {"label_smoothing": 0.1, "terms": terms},
    }
    settings = {
        "seed_everything": seed,
        "data.root": json.dumps([{"root": options.data, "held_out_boxes": options.held_out_boxes}]),
        "model.encoder.output_stride": OUTPUT_STRIDES[variant.grid],
        "model.decoder.attention_activation": variant.activation,
        "model.objective": json.dumps(objective),
        "trainer.max_steps": options.steps,
        "trainer.val_check_interval": options.steps,
        "trainer.callbacks": json.dumps(CALLBACKS),
        "trainer.enable_model_summary": "false",
    }
    arguments = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    shared = ["--config", str(CONFIG), *arguments, *logger_arguments(run_dir), *further]
    training_cli(["cache-features", *shared])
    start = time.perf_counter()
    training_cli(["fit", *shared])
    return (time.perf_counter() - start) / 60


def evaluate(run_dir: Path, options: argparse.Namespace) -> dict[str, float]:
    """Captions on the validation split, maps on the held-out images with boxes."""
    records = datasets.load_records(datasets.resolve_root(Path(options.data)))
    categories = {category for record in records for category in boxes_by_category(record.boxes or ())}
    held_out = [record for record in hold_out_boxes(records, options.held_out_boxes) if record.split == "test"]
    captioner = Captioner.from_pretrained(run_dir / "checkpoints" / "last.safetensors")
    report = summarize(measure_grounding(captioner, held_out, categories))
    result = {
        "cider_d": float(read_metrics(run_dir)[-1]["val/cider_d"]),
        "pointing": float(report.metrics["all"]["pointing/map"].mean),
        "center": float(report.metrics["all"]["pointing/center"].mean),
        "pointing, small": float(report.metrics["small"]["pointing/map"].mean),
        "center, small": float(report.metrics["small"]["pointing/center"].mean),
        "mass": float(report.metrics["all"]["mass/map"].mean),
        "uniform mass": float(report.metrics["all"]["mass/uniform"].mean),
    }
    if options.faithfulness_images:
        result["faithfulness"] = _faithfulness(captioner, records, options.faithfulness_images)
    return result


def _faithfulness(captioner: Captioner, records: Sequence[Record], num_images: int) -> float:
    """Drop of log p if the attended locations are occluded, minus that for the map of another image."""
    images = [record for record in records if record.split == "val"][:num_images]
    report = faithfulness_report.evaluate_model(captioner, images)["soft"]
    return float(report.metrics["drop_difference/other_image"].mean)


def variants(second_seed_of: Sequence[Variant]) -> Iterator[tuple[Variant, int]]:
    """All combinations with seed 1, and some with seed 2."""
    for values in itertools.product(OUTPUT_STRIDES, ACTIVATIONS, (False, True)):
        yield Variant(*values), 1
    for variant in second_seed_of:
        yield variant, 2


def table(results: Sequence[dict[str, Any]]) -> str:
    """A Markdown table: the mean over the seeds."""
    rows = []
    for key in dict.fromkeys(tuple(result["variant"]) for result in results):
        runs = [result for result in results if tuple(result["variant"]) == key]
        variant = Variant(*key)
        means = {name: statistics.mean(run[name] for run in runs) for name in METRICS if name in runs[0]}
        seeds = ", ".join(str(run["seed"]) for run in runs)
        cells = [f"{means[name]:.{1 if name == 'minutes' else 3}f}" if name in means else "" for name in METRICS]
        rows.append([variant.grid, variant.activation, "yes" if variant.supervised else "no", seeds, *cells])
    return markdown_table([["grid", "activation", "supervised", "seeds", *METRICS], *rows])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attention_ablation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", default="coco", metavar="DIR", help="dataset with boxes (default %(default)s)")
    parser.add_argument("--held-out-boxes", type=int, default=500, metavar="N", help="default %(default)s")
    parser.add_argument("--steps", type=int, default=800, metavar="N", help="steps per run (default %(default)s)")
    parser.add_argument(
        "--best", default="16×16,softmax", metavar="GRID,ACTIVATION", help="supervised variant that gets a second seed"
    )
    parser.add_argument("--faithfulness-images", type=int, default=0, metavar="N", help="0 omits the occlusion test")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/attention-ablation"), metavar="DIR", help="run directory"
    )
    parser.add_argument("--output", type=Path, default=Path("docs/attention_ablation.json"), metavar="FILE")
    parser.add_argument(
        "--grids", nargs="+", choices=OUTPUT_STRIDES, default=list(OUTPUT_STRIDES), help="run these only (default all)"
    )
    options, further = parser.parse_known_args(arguments)
    results = []
    for variant, seed in variants([BASE, Variant(*options.best.split(","), supervised=True)]):
        supervision = "boxes" if variant.supervised else "none"
        run_dir = options.runs / f"{variant.grid.replace('×', 'x')}-{variant.activation}-{supervision}-{seed}"
        result_file = run_dir / "result.json"
        if not result_file.is_file():
            if variant.grid not in options.grids:
                continue
            minutes = fit(variant, seed, run_dir, options, further)
            result = {"variant": variant, "seed": seed, "minutes": minutes, **evaluate(run_dir, options)}
            result_file.write_text(json.dumps(result), encoding="utf-8")
        results.append(json.loads(result_file.read_text(encoding="utf-8")))
    options.output.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
