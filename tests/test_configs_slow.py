"""The shipped recipes keep their promises: slow, run by 'make test-slow'."""

import csv
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import REPOSITORY


@pytest.mark.slow
def test_shapes_soft(tmp_path: Path) -> None:
    """Of unseen scenes 95 % of the captions are wholly true within five minutes, and 90 % of the maps point."""
    truth, pointing, minutes, _ = train_and_test("shapes-soft", tmp_path)
    assert truth >= 0.95
    assert pointing >= 0.9
    assert minutes <= 5


@pytest.mark.slow
def test_shapes_hard(tmp_path: Path) -> None:
    """The same for a model that looks at one place only, within ten minutes: that place is on the object."""
    truth, pointing, minutes, checkpoint = train_and_test("shapes-hard", tmp_path, "--model.look", "argmax")
    assert truth >= 0.95
    assert pointing >= 0.95
    assert minutes <= 10
    assert checkpoint["state_dict"]["hard.average"] < 0, "the best must not be of the soft start"


def train_and_test(recipe: str, folder: Path, *testing: str) -> tuple[float, float, float, dict[str, Any]]:
    """Best val/truth, test/pointing, minutes of training with all that it needs, and the best checkpoint."""
    command = [sys.executable, "-m", "captioning"]
    config = ["--config", str(REPOSITORY / "configs" / f"{recipe}.yaml")]
    begin = time.monotonic()
    subprocess.run([*command, "fit", *config], check=True, cwd=folder)
    minutes = (time.monotonic() - begin) / 60
    run = folder / "runs" / recipe / "version_0"
    with (run / "metrics.csv").open() as file:
        truth = max(float(row["val/truth"]) for row in csv.DictReader(file) if row["val/truth"])
    best = run / "checkpoints" / "best.ckpt"
    tested = subprocess.run(
        [*command, "test", *config, "--ckpt_path", str(best), *testing],
        check=True,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    pointing, unselected = (
        float(re.search(rf"test/{name}\D+([\d.]+)", tested.stdout)[1]) for name in ("pointing", "truth")
    )
    print(
        f"{recipe}: val/truth {truth:.3f} in {minutes:.1f} minutes, "
        f"test/truth {unselected:.3f}, test/pointing {pointing:.3f}"
    )
    return truth, pointing, minutes, torch.load(best, weights_only=True)
