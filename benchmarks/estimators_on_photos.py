"""Gradient estimators of hard attention on photos: the same initial model and number of steps for each estimator.

Each run is ``captioning fit --config configs/photos-hard.yaml`` with another estimator, followed by ``captioning
validate`` with attention mode argmax and with the expectation. Arguments that are not listed below go to both, for
example ``--data.batch_size 10``.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.training_runs import CALLBACKS, logger_arguments, read_metrics
from captioning.training.cli import main as training_cli

CONFIG = Path(__file__).parents[1] / "configs" / "photos-hard.yaml"
ESTIMATORS = {  # class and number of samples
    "reinforce": ("Reinforce", 1),
    "leave_one_out": ("LeaveOneOut", 4),
    "learned": ("LearnedBaseline", 1),
    "top_k": ("TopKMarginalized", 2),
    "gumbel": ("StraightThroughGumbel", 1),
}
CURVES = ("attention_entropy", "argmax_changed", "advantage_variance", "score_function_grad_norm", "reward")


def run(name: str, seed: int, options: argparse.Namespace, further: Sequence[str]) -> dict[str, Any]:
    """Train with an estimator and validate with both attention modes."""
    class_name, num_samples = ESTIMATORS[name]
    setting = "--model.objective.init_args.estimator"
    estimator = (setting, f"captioning.objectives.{class_name}", f"{setting}.num_samples", str(num_samples))
    shared = ("--config", str(CONFIG), "--data.root", options.data, "--trainer.enable_model_summary", "false", *further)
    start = time.perf_counter()
    fit_dir = _run_dir(options, f"{name}-{seed}")
    callbacks = ("--trainer.callbacks", json.dumps(CALLBACKS))
    steps = (
        "--trainer.max_steps",
        str(options.steps),
        "--trainer.max_epochs",
        "-1",
        "--trainer.limit_val_batches",
        "0",
    )
    source = ("--model.init_from", options.init_from, "--seed_everything", str(seed))
    training_cli(["fit", *shared, *source, *estimator, *steps, *callbacks, *logger_arguments(fit_dir)])
    minutes = (time.perf_counter() - start) / 60
    rows = read_metrics(fit_dir)
    curves = {
        curve: [(int(row["step"]), float(row[f"train/{curve}"])) for row in rows if row.get(f"train/{curve}")]
        for curve in CURVES
    }
    result: dict[str, Any] = {"estimator": name, "seed": seed, "minutes": minutes, "curves": curves}
    for mode in ("argmax", "expectation"):
        val_dir = _run_dir(options, f"{name}-{seed}-{mode}")
        checkpoint = ("--ckpt_path", str(fit_dir / "checkpoints" / "last.ckpt"), "--model.init_from", "null")
        training_cli(
            ["validate", *shared, *estimator, *checkpoint, "--model.attention_mode", mode, *logger_arguments(val_dir)]
        )
        result[mode] = float(read_metrics(val_dir)[-1]["val/cider_d"])
    return result


def _run_dir(options: argparse.Namespace, version: str) -> Path:
    return options.runs / "estimators-on-photos" / version


def table(results: Sequence[dict[str, Any]]) -> str:
    """A Markdown table: mean over the seeds, and the values of the seeds in parentheses."""
    lines = ["| estimator | CIDEr-D argmax | CIDEr-D expectation | entropy, first → last | minutes |", "|---" * 5 + "|"]
    for name in dict.fromkeys(result["estimator"] for result in results):
        runs = [result for result in results if result["estimator"] == name]
        scores = [
            f"{statistics.mean(run[mode] for run in runs):.3f} ({', '.join(f'{run[mode]:.3f}' for run in runs)})"
            for mode in ("argmax", "expectation")
        ]
        entropies = [[value for _, value in run["curves"]["attention_entropy"]] for run in runs]
        first, last = (statistics.mean(values[index] for values in entropies) for index in (0, -1))
        minutes = statistics.mean(run["minutes"] for run in runs)
        lines.append(f"| `{name}` | {' | '.join(scores)} | {first:.2f} → {last:.2f} | {minutes:.1f} |")
    return "\n".join(lines)


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Entropy and changed locations over the steps, one line per run, one color per estimator."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {
        "attention_entropy": "attention entropy (nats)",
        "argmax_changed": "words whose most attended location\nchanged since the last logged step",
    }
    figure, axes = pyplot.subplots(1, len(panels), figsize=(11, 4.2), layout="constrained")
    colors = {name: f"C{index}" for index, name in enumerate(ESTIMATORS)}
    for panel, (curve, title) in zip(axes, panels.items(), strict=True):
        for result in results:
            name = result["estimator"]
            is_first = result["seed"] == results[0]["seed"]
            points = list(zip(*result["curves"][curve], strict=True))
            panel.plot(*points, color=colors[name], label=name if is_first else None, alpha=1 if is_first else 0.5)
        panel.set_title(title)
        panel.set_xlabel("step")
        panel.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimators_on_photos", description=__doc__)
    parser.add_argument("--init-from", required=True, metavar="MODEL", help="soft model that the training starts from")
    parser.add_argument("--data", required=True, metavar="DIR", help="dataset, see data/README.md")
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="training steps per run (default 300)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], metavar="SEED", help="default 1 2")
    parser.add_argument("--estimators", nargs="+", choices=ESTIMATORS, default=list(ESTIMATORS), help="default: all")
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="directory of the runs")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("docs/estimators_on_photos.json"),
        metavar="FILE",
        help="all values as JSON; the plot goes to a PNG file beside it (default %(default)s)",
    )
    options, further = parser.parse_known_args(arguments)
    results: list[dict[str, Any]] = []
    for seed in options.seeds:
        for name in options.estimators:
            results.append(run(name, seed, options, further))
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps(results, indent=1) + "\n")  # after each run: all of them take hours
    print(table(results))
    plot(results, options.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
