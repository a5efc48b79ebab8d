"""Benchmarks that train models run, on synthetic scenes for a few steps."""

import json
from pathlib import Path

import pytest

from benchmarks import estimators_on_photos
from tests.training.conftest import Fit


@pytest.mark.slow
def test_estimators_on_photos(fit: Fit, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    soft_model = fit("--trainer.max_epochs", "1") / "checkpoints" / "last.ckpt"
    output = tmp_path / "output" / "estimators.json"
    options = ["--init-from", str(soft_model), "--data", str(drawn), "--steps", "4", "--seeds", "1"]
    options += ["--estimators", "leave_one_out", "learned", "--runs", str(tmp_path / "runs"), "--output", str(output)]
    further = [
        "--data.hflip",
        "false",
        "--model.decoder.spatial_dropout",
        "false",
        "--data.feature_cache_dir",
        str(tmp_path / "features"),
    ]
    further += ["--trainer.log_every_n_steps", "2", "--trainer.enable_progress_bar", "false"]
    estimators_on_photos.main([*options, *further])
    results = json.loads(output.read_text())
    assert [result["estimator"] for result in results] == ["leave_one_out", "learned"]
    for result in results:
        assert [step for step, _ in result["curves"]["attention_entropy"]] == [1, 3]
        assert 0 <= result["argmax"] <= 10
        assert 0 <= result["expectation"] <= 10
    assert output.with_suffix(".png").is_file()
    assert "| `leave_one_out` |" in capsys.readouterr().out
