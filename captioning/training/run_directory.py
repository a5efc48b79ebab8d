"""Run directories ``<save_dir>/<name>/<version>``: a resumed run continues in its own."""

import csv
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.loggers import CSVLogger

from captioning.training.checkpoint_io import model_file_path

_CHECKPOINT_DIR = "checkpoints"


def run_directory(checkpoint: str | Path) -> Path | None:
    """The run directory of a checkpoint; None if the file was copied to another place."""
    directory = Path(checkpoint).parent
    is_run = directory.name == _CHECKPOINT_DIR and (directory.parent / "config.yaml").is_file()
    return directory.parent if is_run else None


def continue_in_run_directory(config: Any) -> None:
    """Set the version of the logger to that of the checkpoint's run, unless another one is given."""
    run, logger = run_directory(config.ckpt_path), config.trainer.logger
    arguments = logger.get("init_args") if hasattr(logger, "get") else None
    if run is None or arguments is None or arguments.get("version") is not None:
        return
    if (Path(arguments.save_dir) / (arguments.get("name") or "")).resolve() == run.resolve().parent:
        arguments.version = run.name


def keep_metrics(logger: Any, checkpoint: str | Path) -> None:
    """Keep the metrics that a resumed run logged until its checkpoint; CSVLogger would delete them.

    Later rows are dropped, since the resumed run logs these steps again.
    """
    if not isinstance(logger, CSVLogger):
        return
    path = Path(logger.log_dir) / "metrics.csv"
    if not path.is_file():
        return
    num_steps = torch.load(checkpoint, map_location="cpu", weights_only=True)["global_step"]
    with path.open(newline="", encoding="utf-8") as file:
        rows = [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]
    experiment: Any = logger.experiment  # deletes the file
    experiment.metrics = [row for row in rows if int(row["step"]) < num_steps]
    experiment.save()


def resume_advice(directory: str | Path) -> list[str]:
    """Return the command that resumes an interrupted run, and the path of its model file, as lines of text.

    Args:
        directory: directory of the checkpoints.
    """
    checkpoints = sorted(Path(directory).glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    if not checkpoints:
        return ["interrupted before the first checkpoint was written"]
    named = {path.stem: path for path in checkpoints}
    last, best = named.get("last", checkpoints[-1]), named.get("best", checkpoints[-1])
    config = Path(directory).parent / "config.yaml"
    return [
        f"interrupted; resume: captioning fit --config {config} --ckpt_path {last}",
        f"model file: {model_file_path(best)}",
    ]
