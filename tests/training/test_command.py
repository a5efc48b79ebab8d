"""The training commands as a user runs them."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from captioning import Captioner
from captioning.cli import main
from captioning.datasets import karpathy
from tests.training.conftest import Fit


def metrics(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]


def test_fit_leaves_all_behind(fit: Fit, drawn: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fit()
    validated = [row for row in metrics(run) if "val/loss" in row]
    assert len(validated) == 2
    assert {"val/bleu4", "val/truth", "val/pointing"} <= validated[0].keys()
    assert (run / "config.yaml").is_file()
    for name in ("best", "last"):
        checkpoint = torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True)
        captioner = Captioner.load(run / "checkpoints" / f"{name}.safetensors")
        for part in ("encoder", "decoder"):
            for key, value in getattr(captioner, part).state_dict().items():
                assert torch.equal(value, checkpoint["state_dict"][f"{part}.{key}"])
        assert captioner(next((drawn / "images").iterdir())).words
    output = capsys.readouterr()
    assert f"model file: {run / 'checkpoints' / 'best.safetensors'}" in output.out
    assert "Tip" not in output.out + output.err
    assert "litlogger" not in output.out + output.err


@pytest.mark.parametrize("subcommand", ["validate", "test", "predict"])
def test_a_checkpoint_brings_its_own_settings(
    fit: Fit, config: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], subcommand: str
) -> None:
    """--ckpt_path alone must do, though the config says otherwise."""
    run = fit("--model.hidden_size", "24", "--model.wiring", "luong", "--data.minimum_count", "3")
    checkpoint = str(run / "checkpoints" / "best.ckpt")
    predictions = tmp_path / "captions.jsonl"
    arguments = ("--ckpt_path", checkpoint, "--predictions.path", str(predictions))
    main([subcommand, "--config", str(config), "--trainer.logger.init_args.version", "tested", *arguments])
    output = capsys.readouterr().out
    if subcommand == "validate":
        assert "val/truth" in output
    elif subcommand == "test":
        assert "test/pointing" in output
    else:
        rows = [json.loads(line) for line in predictions.read_text().splitlines()]
        entries = json.loads((drawn / "dataset.json").read_text())["images"]
        assert sorted(Path(row["image"]).name for row in rows) == [
            entry["filename"] for entry in entries if entry["split"] == "test"
        ]
        assert all(row["caption"] for row in rows)
        assert f"captions: {predictions}" in output


def test_the_vocabularys_size_reaches_the_model(fit: Fit) -> None:
    """It is written nowhere: a smaller vocabulary makes a smaller output layer."""
    sizes = []
    for number, count in enumerate(("1", "30")):
        run = fit("--data.minimum_count", count, "--trainer.max_epochs", "1", version=f"run{number}")
        captioner = Captioner.load(run / "checkpoints" / "last.safetensors")
        assert len(captioner.vocabulary) == captioner.decoder.output.out_features
        sizes.append(len(captioner.vocabulary))
    assert sizes[0] > sizes[1]


def states(run: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, str]]]:
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    return checkpoint["state_dict"], [row for row in metrics(run) if "val/loss" in row]


@pytest.mark.parametrize(
    ("kept", "stopped_at", "epochs_left"),
    [({"monitor": "val/loss"}, "epoch=0", 2), ({"every_n_train_steps": 2}, "step=8", 2)],  # six steps make an epoch
    ids=["between epochs", "within an epoch"],
)
@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_a_resumed_run_equals_an_uninterrupted_one(
    config: Path, fit: Fit, kept: dict[str, Any], stopped_at: str, epochs_left: int, attention: str
) -> None:
    """Dropout, order, optimiser, schedule, sampled places and their baseline go on as if nothing had happened.

    Weights are equal to the last bit.
    """
    settings = yaml.safe_load(config.read_text())
    settings["model"]["attention"] = attention
    every = {**kept, "save_top_k": -1, "filename": "{epoch}-{step}-"}
    callback = {"class_path": "pytorch_lightning.callbacks.ModelCheckpoint", "init_args": every}
    settings["trainer"]["callbacks"].append(callback)
    settings["trainer"]["max_epochs"] = 3
    config.write_text(yaml.safe_dump(settings))
    whole = fit(version="whole")
    (stopped,) = (whole / "checkpoints").glob(f"*{stopped_at}-*.ckpt")
    resumed = fit("--ckpt_path", str(stopped), version="resumed")
    (weights, scores), (weights_after, scores_after) = states(whole), states(resumed)
    assert scores_after == scores[-epochs_left:]
    for key, weight in weights.items():
        assert torch.equal(weight, weights_after[key]), key
    assert ("hard.average" in weights) == (attention == "hard")


def test_a_hard_model_is_tested_by_the_look_that_is_asked_for(fit: Fit, config: Path, capsys) -> None:
    run = fit("--model.attention", "hard", "--model.look", "expect")
    assert Captioner.load(run / "checkpoints" / "last.safetensors").look == "expect"
    capsys.readouterr()
    losses = {}
    for look in ("expect", "argmax", "sample"):
        arguments = ("--ckpt_path", str(run / "checkpoints" / "last.ckpt"), "--model.look", look)
        main(["test", "--config", str(config), "--trainer.logger.init_args.version", f"by-{look}", *arguments])
        losses[look] = re.search(r"test/loss\D+([\d.]+)", capsys.readouterr().out)[1]
    assert len(set(losses.values())) == 3


def test_the_config_of_a_run_repeats_it(fit: Fit) -> None:
    run = fit(version="first")
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert saved["model"]["encoder"] == "tiny"
    assert "vocabulary" not in saved["model"]
    assert "__main__" not in (run / "config.yaml").read_text()
    again = run.parent / "again"
    main(["fit", "--config", str(run / "config.yaml"), "--trainer.logger.init_args.version", "again"])
    first, second = states(run), states(again)
    assert all(torch.equal(first[0][key], second[0][key]) for key in first[0])
    assert first[1] == second[1]


def test_features_are_made_before_training(config: Path, fit: Fit, tmp_path: Path, capsys) -> None:
    main(["features", "--config", str(config), "--model.train_encoder", "false"])
    (folder,) = (path for path in (tmp_path / "features").iterdir() if path.is_dir())
    assert f"features of 60 pictures: {folder}" in capsys.readouterr().out
    made = (folder / "annotations.npy").stat().st_mtime_ns
    fit("--model.train_encoder", "false", "--trainer.max_epochs", "1")
    assert [path for path in (tmp_path / "features").iterdir() if path.is_dir()] == [folder]
    assert (folder / "annotations.npy").stat().st_mtime_ns == made


def test_crops_are_made_once(config: Path, fit: Fit, drawn: Path, tmp_path: Path, capsys) -> None:
    frozen = ("--model.train_encoder", "false", "--data.crops", "2")
    main(["features", "--config", str(config), *frozen])
    folders = {path for path in (tmp_path / "features").iterdir() if path.is_dir()}
    assert len(folders) == 2
    (crops,) = (path for path in folders if len(np.load(path / "annotations.npy", mmap_mode="r")) == 2)
    training = [record for record in karpathy.read(drawn) if record.split == "train"]
    assert f"features of 2 crops of {len(training)} pictures: {crops}" in capsys.readouterr().out
    assert (crops / "pictures.txt").read_text().splitlines() == [str(record.image) for record in training]
    fit(*frozen, "--trainer.max_epochs", "1")
    assert {path for path in (tmp_path / "features").iterdir() if path.is_dir()} == folders


def test_crops_are_made_for_training_only(config: Path, fit: Fit, tmp_path: Path) -> None:
    run = fit("--model.train_encoder", "false", "--trainer.max_epochs", "1")
    checkpoint = ("--ckpt_path", str(run / "checkpoints" / "best.ckpt"))
    settings = ("--model.train_encoder", "false", "--data.crops", "2", "--trainer.logger.init_args.version", "after")
    main(["validate", "--config", str(config), *settings, *checkpoint])
    assert len([path for path in (tmp_path / "features").iterdir() if path.is_dir()]) == 1


def test_crops_go_into_an_encoder_whose_last_blocks_learn(config: Path, fit: Fit, tmp_path: Path) -> None:
    callback = "captioning.training.callbacks.FineTuneEncoder"
    tuned = ("--trainer.callbacks+", callback, "--trainer.callbacks.epoch", "0", "--trainer.callbacks.blocks", "1")
    run = fit("--model.train_encoder", "false", "--data.crops", "2", *tuned)
    caches = [np.load(path, mmap_mode="r") for path in (tmp_path / "features").glob("*/annotations.npy")]
    assert sorted(len(cache) for cache in caches) == [1, 2]
    assert len({cache.shape[2:] for cache in caches}) == 1
    assert (run / "checkpoints" / "best.safetensors").is_file()


def test_features_need_a_frozen_encoder(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_error(capsys, ["features", "--config", str(config)], "model.train_encoder to false")
    check_error(capsys, ["features", "--config", str(config), "--model.hiden_size", "8"], "hiden_size", "did you mean")
    check_error(
        capsys, ["fit", "--config", str(config), "--data.mirror", "true"], "data.mirror needs the feature cache"
    )
    check_error(capsys, ["fit", "--config", str(config), "--data.crops", "2"], "data.crops needs the feature cache")
    check_error(capsys, ["fit", "--config", str(config), "--data.crops", "-1"], "data.crops -1", "negative")


def test_a_config_with_a_typo(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(config.read_text().replace("hidden_size", "hiden_size"))
    check_error(
        capsys, ["fit", "--config", str(config)], str(config), "model.hiden_size", "did you mean 'model.hidden_size'?"
    )


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--model.hiden_size", "4"), ("model.hiden_size", "did you mean 'model.hidden_size'?")),
        (("--model.score", "sum"), ("model.score", "additive", "sum")),
        (("--model.attention", "hard", "--model.estimator", "x"), ("model.estimator", "leave_one_out")),
        (("--model.look", "argmax"), ("attention is soft", "expect")),
        (("--model.encoder", "vgg20"), ("unknown encoder 'vgg20'", "vgg19")),
        (("--data.root", "nowhere", "--data.scenes", "0"), ("nowhere", "no such folder", "data.root")),
        (("--data.scenes", "5"), ("holds another set", "data.root")),
        (("--ckpt_path", "none.ckpt"), ("none.ckpt", "no such checkpoint")),
        (("--ckpt_path", __file__), ("test_command.py", "not a checkpoint")),
    ],
)
def test_bad_input_is_one_line(
    config: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    check_error(capsys, ["fit", "--config", str(config), *arguments], *parts)


def test_testing_needs_a_trained_model(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_error(capsys, ["test", "--config", str(config)], "needs a trained model", "--ckpt_path")


def test_a_missing_config(capsys: pytest.CaptureFixture[str]) -> None:
    check_error(capsys, ["fit", "--config", "none.yaml"], "none.yaml", "does not exist")


def check_error(capsys: pytest.CaptureFixture[str], arguments: list[str], *parts: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("captioning: error:")]
    assert len(lines) == 1
    for part in parts:
        assert part in lines[0]
