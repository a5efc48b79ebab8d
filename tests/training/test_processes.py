"""Two processes on the CPU, as on two GPUs."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "model", [[], ["--model.attention", "hard", "--model.estimator", "learned"]], ids=["soft", "hard"]
)
def test_two_processes_train_together(config: Path, tmp_path: Path, model: list[str]) -> None:
    arguments = [*model, "--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
    command = [sys.executable, "-m", "captioning", "fit", "--config", str(config), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    assert result.returncode == 0, result.stderr
    with (tmp_path / "runs" / "test" / "run" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len([row for row in rows if row["val/truth"]]) == 2
    assert int(rows[-1]["step"]) == 5, "two epochs of six batches, shared by two"
