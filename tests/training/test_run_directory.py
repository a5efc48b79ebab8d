"""Run directories: resuming, interrupting, and commands that leave none."""

import csv
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import yaml

from captioning.cli.main import main
from captioning.training.callbacks import SeedEveryBatch
from captioning.training.run_directory import resume_advice, run_directory
from tests.training.conftest import Fit


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_finetuned_run_is_resumed_and_evaluated_with_its_config(config: Path, tmp_path: Path, fit: Fit) -> None:
    """Weights and generation settings come from the checkpoint, the teacher's size from ``init_from``."""
    source = fit("--trainer.max_epochs", "1") / "checkpoints" / "last.safetensors"
    settings = yaml.safe_load(config.read_text())
    settings["model"] = {name: settings["model"][name] for name in ("objective", "optimizer")}
    settings["model"]["init_from"] = str(source)
    settings["data"]["extend_vocabulary"] = True
    terms = [{"class_path": "captioning.objectives.Distillation", "init_args": {"weight": 0.5}}]
    settings["model"]["objective"] = {
        "class_path": "captioning.objectives.CrossEntropy",
        "init_args": {"terms": terms},
    }
    config.write_text(yaml.safe_dump(settings))
    run = fit("--trainer.max_epochs", "1", version="tuned")
    checkpoint = ("--ckpt_path", str(run / "checkpoints" / "last.ckpt"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        main(["validate", "--config", str(config), *checkpoint])
    assert [str(warning.message) for warning in caught if "dirpath" in str(warning.message)] == []
    fit(*checkpoint, "--trainer.max_epochs", "2", version="tuned")
    saved = yaml.safe_load((run / "config.yaml").read_text())["model"]
    assert saved["generation"]["max_length"] == 12
    first, resumed = (torch.load(run / "checkpoints" / name, weights_only=True) for name in ("best.ckpt", "last.ckpt"))
    (name,) = [name for name in resumed["state_dict"] if name.endswith("teacher.embedding.weight")]
    assert torch.equal(first["state_dict"][name], resumed["state_dict"][name]), "the teacher is the initial model"


def best_score(checkpoint: Path) -> float:
    callbacks = torch.load(checkpoint, weights_only=True)["callbacks"]
    (state,) = [value for key, value in callbacks.items() if "ModelCheckpoint" in key and "caption_accuracy" in key]
    return float(state["best_model_score"])


def test_a_resumed_run_continues_in_its_directory(config: Path, tmp_path: Path) -> None:
    """It appends to metrics.csv and keeps the best score and the best checkpoint."""
    settings = yaml.safe_load(config.read_text())
    del settings["trainer"]["logger"]["init_args"]["version"]
    settings["trainer"]["log_every_n_steps"] = 2
    settings["trainer"]["callbacks"] = settings["trainer"]["callbacks"][:2]  # no early stopping
    config.write_text(yaml.safe_dump(settings))
    main(["fit", "--config", str(config), "--trainer.max_epochs", "1"])
    run = tmp_path / "runs" / "test" / "version_0"
    first, checkpoint = rows(run), run / "checkpoints" / "last.ckpt"
    assert run_directory(checkpoint) == run
    state = torch.load(checkpoint, weights_only=True)
    (key,) = [key for key in state["callbacks"] if "ModelCheckpoint" in key and "caption_accuracy" in key]
    state["callbacks"][key].update(best_model_score=torch.tensor(2.0), kth_value=torch.tensor(2.0))
    state["callbacks"][key]["best_k_models"] = {
        path: torch.tensor(2.0) for path in state["callbacks"][key]["best_k_models"]
    }
    torch.save(state, checkpoint)
    best = (run / "checkpoints" / "best.ckpt").read_bytes()
    with (run / "metrics.csv").open("a") as file:  # a step that was logged after the checkpoint
        file.write(",".join("9999" if name == "step" else "1" for name in first[0]) + "\n")
    main(["fit", "--config", str(run / "config.yaml"), "--ckpt_path", str(checkpoint), "--trainer.max_epochs", "2"])
    assert [path.name for path in run.parent.iterdir()] == ["version_0"]
    resumed = rows(run)
    assert [row["step"] for row in resumed[: len(first)]] == [row["step"] for row in first]
    assert len(resumed) == 2 * len(first)
    assert "9999" not in {row["step"] for row in resumed}
    assert best_score(checkpoint) == 2
    assert (run / "checkpoints" / "best.ckpt").read_bytes() == best, "no score exceeds the best one"


def test_a_given_version_is_a_new_directory(fit: Fit) -> None:
    first = fit("--trainer.max_epochs", "1", version="first")
    before = (first / "metrics.csv").read_bytes()
    second = fit("--ckpt_path", str(first / "checkpoints" / "last.ckpt"), version="second")
    assert (second / "checkpoints" / "last.ckpt").is_file()
    assert (first / "metrics.csv").read_bytes() == before


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_evaluation_leaves_no_directories(
    fit: Fit, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, command: str
) -> None:
    run = fit("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1")
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    capsys.readouterr()
    main([command, "--config", str(config), "--ckpt_path", str(run / "checkpoints" / "last.ckpt")])
    expected = {run / "predictions.jsonl"} if command == "predict" else set()
    assert set(tmp_path.rglob("*")) - before == expected
    output = capsys.readouterr()
    assert "Tip" not in output.out + output.err


def test_ctrl_c_prints_how_to_resume(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(self: SeedEveryBatch, trainer: pl.Trainer, *_: object) -> None:
        if trainer.current_epoch == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(SeedEveryBatch, "on_train_batch_start", interrupt)
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as stop:
        fit()
    signal.signal(signal.SIGINT, handler)
    assert stop.value.code == 130
    lines = capsys.readouterr().err.splitlines()
    run = Path("runs/test/run")
    command = f"captioning fit --config {run / 'config.yaml'} --ckpt_path {run / 'checkpoints' / 'last.ckpt'}"
    assert f"interrupted; resume: {command}" in lines
    assert f"model file: {run / 'checkpoints' / 'best.safetensors'}" in lines
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    main(command.split()[1:])
    assert len([row for row in rows(run) if row["val/nll"]]) == 2


def test_advice_without_a_checkpoint(tmp_path: Path) -> None:
    assert resume_advice(tmp_path) == ["interrupted before the first checkpoint was written"]
    assert run_directory(tmp_path / "copied.ckpt") is None
