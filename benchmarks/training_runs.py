"""Training runs of the benchmarks: where they write, and what they logged."""

import csv
from pathlib import Path

# As in the photo recipes, but without the checkpoint of the best validation: the last weights are compared.
CALLBACKS = [
    {"class_path": "captioning.training.callbacks.EMAWeights", "init_args": {"decay": 0.99}},
    {"class_path": "pytorch_lightning.callbacks.ModelCheckpoint", "init_args": {"filename": "last"}},
]


def logger_arguments(run_dir: Path) -> list[str]:
    """Command-line arguments for a run that writes to this directory."""
    prefix = "--trainer.logger.init_args"
    names = {"save_dir": run_dir.parents[1], "name": run_dir.parent.name, "version": run_dir.name}
    return [part for name, value in names.items() for part in (f"{prefix}.{name}", str(value))]


def read_metrics(run_dir: Path) -> list[dict[str, str]]:
    """Rows of the metrics that a run has logged."""
    with (run_dir / "metrics.csv").open() as file:
        return list(csv.DictReader(file))
