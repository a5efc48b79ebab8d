"""The shipped recipes keep their promises: slow, run by 'make test-slow'."""

import csv
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.slow
def test_shapes_soft(tmp_path: Path) -> None:
    """Of unseen scenes 95 % of the captions are wholly true within five minutes, and 90 % of the maps point."""
    command = [sys.executable, "-m", "captioning"]
    config = ["--config", str(REPOSITORY / "configs" / "shapes-soft.yaml")]
    begin = time.monotonic()
    subprocess.run([*command, "fit", *config], check=True, cwd=tmp_path)
    minutes = (time.monotonic() - begin) / 60
    run = tmp_path / "runs" / "shapes-soft" / "version_0"
    with (run / "metrics.csv").open() as file:
        truth = max(float(row["val/truth"]) for row in csv.DictReader(file) if row["val/truth"])
    checkpoint = str(run / "checkpoints" / "best.ckpt")
    tested = subprocess.run(
        [*command, "test", *config, "--ckpt_path", checkpoint], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    pointing, unselected = (
        float(re.search(rf"test/{name}\D+([\d.]+)", tested.stdout)[1]) for name in ("pointing", "truth")
    )
    print(f"val/truth {truth:.3f} in {minutes:.1f} minutes, test/truth {unselected:.3f}, test/pointing {pointing:.3f}")
    assert truth >= 0.95
    assert pointing >= 0.9
    assert minutes <= 5
