"""The training commands, run as a user runs them."""

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pytorch_lightning.cli import LightningCLI

from captioning import Captioner
from captioning.cli.main import main
from captioning.datasets.readers import karpathy
from tests.training.conftest import Fit

WRONG_CALLBACK = '{"class_path": "captioning.training.callbacks.EMAWeights", "init_args": {"decy": 1}}'


def metrics(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]


def test_fit_writes_checkpoints_model_files_and_config(
    fit: Fit, drawn: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fit()
    validated = [row for row in metrics(run) if "val/nll" in row]
    assert len(validated) == 2
    assert {"val/bleu4", "val/caption_accuracy", "val/pointing_game"} <= validated[0].keys()
    assert (run / "config.yaml").is_file()
    for name in ("best", "last"):
        checkpoint = torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True)
        captioner = Captioner.from_pretrained(run / "checkpoints" / f"{name}.safetensors")
        for part in ("encoder", "decoder"):
            for key, value in getattr(captioner, part).state_dict().items():
                assert torch.equal(value, checkpoint["state_dict"][f"{part}.{key}"])
        assert captioner(next((drawn / "images").iterdir())).words
    output = capsys.readouterr()
    assert f"model file: {run / 'checkpoints' / 'best.safetensors'}" in output.out
    assert "Tip" not in output.out + output.err
    assert "litlogger" not in output.out + output.err


@pytest.mark.parametrize("subcommand", ["validate", "test", "predict"])
def test_evaluation_commands_use_the_settings_of_the_run(
    fit: Fit, config: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], subcommand: str
) -> None:
    """The config of the run states its settings; the vocabulary is the checkpoint's."""
    run = fit("--model.decoder.hidden_size", "24", "--model.decoder.architecture", "luong", "--data.min_word_freq", "3")
    checkpoint = str(run / "checkpoints" / "best.ckpt")
    predictions = tmp_path / "captions.jsonl"
    arguments = ("--ckpt_path", checkpoint, "--predictions.path", str(predictions))
    main([subcommand, "--config", str(run / "config.yaml"), "--trainer.logger.init_args.version", "tested", *arguments])
    output = capsys.readouterr().out
    if subcommand == "validate":
        assert "val/caption_accuracy" in output
    elif subcommand == "test":
        assert "test/pointing_game" in output
    else:
        rows = [json.loads(line) for line in predictions.read_text().splitlines()]
        entries = json.loads((drawn / "dataset.json").read_text())["images"]
        assert sorted(Path(row["image"]).name for row in rows) == [
            entry["filename"] for entry in entries if entry["split"] == "test"
        ]
        assert all(row["caption"] for row in rows)
        assert f"captions: {predictions}" in output


def test_the_vocabulary_determines_the_output_layer(fit: Fit) -> None:
    """A smaller vocabulary gives a smaller output layer; no setting states its size."""
    sizes = []
    for number, count in enumerate(("1", "30")):
        run = fit("--data.min_word_freq", count, "--trainer.max_epochs", "1", version=f"run{number}")
        captioner = Captioner.from_pretrained(run / "checkpoints" / "last.safetensors")
        assert len(captioner.vocabulary) == captioner.decoder.output.out_features
        sizes.append(len(captioner.vocabulary))
    assert sizes[0] > sizes[1]


def states(run: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, str]]]:
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    return checkpoint["state_dict"], [row for row in metrics(run) if "val/nll" in row]


@pytest.mark.parametrize(
    ("kept", "stopped_at", "epochs_left"),
    [({"monitor": "val/nll"}, "epoch=0", 2), ({"every_n_train_steps": 2}, "step=8", 2)],  # six steps make an epoch
    ids=["between epochs", "within an epoch"],
)
@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_a_resumed_run_equals_an_uninterrupted_one(
    config: Path, fit: Fit, kept: dict[str, Any], stopped_at: str, epochs_left: int, attention: str
) -> None:
    """Dropout, order, optimizer, schedule, sampled locations and their baseline continue: weights are bitwise equal."""
    settings = yaml.safe_load(config.read_text())
    settings["model"]["decoder"]["attention"] = attention
    if attention == "hard":
        estimator = {"class_path": "captioning.objectives.Reinforce"}
        bound = "captioning.objectives.VariationalBound"
        settings["model"]["objective"] = {"class_path": bound, "init_args": {"estimator": estimator}}
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
    assert ("objective.estimator.average_return.value" in weights) == (attention == "hard")


def test_a_hard_model_is_tested_with_the_given_attention_mode(fit: Fit, config: Path, capsys) -> None:
    hard = ("--model.decoder.attention", "hard", "--model.objective", "VariationalBound")
    estimator = ("--model.objective.estimator", "Reinforce", "--model.attention_mode", "expectation")
    run = fit(*hard, *estimator)
    assert Captioner.from_pretrained(run / "checkpoints" / "last.safetensors").attention_mode == "expectation"
    capsys.readouterr()
    losses = {}
    for mode in ("expectation", "argmax", "sample"):
        arguments = ("--ckpt_path", str(run / "checkpoints" / "last.ckpt"), "--model.attention_mode", mode)
        main(
            ["test", "--config", str(run / "config.yaml"), "--trainer.logger.init_args.version", f"{mode}", *arguments]
        )
        losses[mode] = re.search(r"test/nll\D+([\d.]+)", capsys.readouterr().out)[1]
    assert len(set(losses.values())) == 3


def test_the_config_of_a_run_repeats_it(fit: Fit) -> None:
    run = fit(version="first")
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert saved["model"]["encoder"]["backbone"] == "tiny"
    assert "vocabulary" not in saved["model"]
    assert "__main__" not in (run / "config.yaml").read_text()
    again = run.parent / "again"
    main(["fit", "--config", str(run / "config.yaml"), "--trainer.logger.init_args.version", "again"])
    first, second = states(run), states(again)
    assert all(torch.equal(first[0][key], second[0][key]) for key in first[0])
    assert first[1] == second[1]


def cached_keys(features: Path) -> list[str]:
    """Keys of the only feature cache in a directory."""
    (keys,) = features.glob("*/keys.txt")
    return keys.read_text().splitlines()


def test_features_are_cached_before_training(config: Path, fit: Fit, tmp_path: Path, capsys) -> None:
    main(["cache-features", "--config", str(config), "--model.encoder.frozen", "true"])
    keys = cached_keys(tmp_path / "features")
    assert len(keys) == 60
    assert re.search(r"features of 60 images: .*features/tiny-64-", capsys.readouterr().out)
    fit("--model.encoder.frozen", "true", "--trainer.max_epochs", "1")
    assert cached_keys(tmp_path / "features") == keys


def test_a_command_caches_what_it_needs(config: Path, fit: Fit, drawn: Path, tmp_path: Path) -> None:
    """Crops of training images only, and in validation nothing but the validation images."""
    splits = Counter(record.split for record in karpathy.read_records(drawn))
    frozen = ("--model.encoder.frozen", "true", "--data.num_crops", "2")
    run = fit(*frozen, "--trainer.max_epochs", "1")
    views = Counter(key.split()[1] for key in cached_keys(tmp_path / "features"))
    assert views == {"0": splits["train"] + splits["val"], "crop0": splits["train"], "crop1": splits["train"]}
    elsewhere = ("--data.feature_cache_dir", str(tmp_path / "other"), "--trainer.logger.init_args.version", "after")
    checkpoint = ("--ckpt_path", str(run / "checkpoints" / "best.ckpt"))
    main(["validate", "--config", str(config), *frozen, *elsewhere, *checkpoint])
    assert len(cached_keys(tmp_path / "other")) == splits["val"]


def test_crops_with_trained_last_blocks(fit: Fit, tmp_path: Path) -> None:
    callback = "captioning.training.callbacks.EncoderFinetuning"
    tuned = ("--trainer.callbacks+", callback, "--trainer.callbacks.unfreeze_at_epoch", "0")
    tuned = (*tuned, "--trainer.callbacks.num_blocks", "1")
    run = fit("--model.encoder.frozen", "true", "--data.num_crops", "2", *tuned)
    assert {key.split()[1] for key in cached_keys(tmp_path / "features")} == {"0", "crop0", "crop1"}
    assert (run / "checkpoints" / "best.safetensors").is_file()


def test_the_feature_cache_requires_a_frozen_encoder(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_error(capsys, ["cache-features", "--config", str(config)], "model.encoder.frozen to true")
    check_error(
        capsys,
        ["cache-features", "--config", str(config), "--model.decoder.hiden_size", "8"],
        "hiden_size",
        "did you mean",
    )
    check_error(
        capsys, ["fit", "--config", str(config), "--data.hflip", "true"], "data.hflip requires the feature cache"
    )
    check_error(
        capsys, ["fit", "--config", str(config), "--data.num_crops", "2"], "data.num_crops requires the feature cache"
    )
    check_error(
        capsys, ["fit", "--config", str(config), "--data.num_crops", "-1"], "data.num_crops must be >= 0, got -1"
    )


def test_a_config_with_a_typo(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(config.read_text().replace("hidden_size", "hiden_size"))
    check_error(
        capsys, ["fit", "--config", str(config)], str(config), "hiden_size", "did you mean 'model.decoder.hidden_size'?"
    )


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--model.decoder.hiden_size", "4"), ("hiden_size", "did you mean 'model.decoder.hidden_size'?")),
        (("--model.decoder.attention_score", "sum"), ("attention_score", "additive", "sum")),
        (("--model.objective", "x"), ("model.objective", "choose one of CrossEntropy, SelfCritical, VariationalBound")),
        (("--model.objective.gamma", "1"), ("no setting 'gamma'", "CrossEntropy has the settings label_smoothing")),
        (("--model.optimizer.init_args.lrr", "1"), ("setting 'lrr'", "AdamW has the settings lr, betas")),
        (("--trainer.callbacks+", WRONG_CALLBACK), ("no setting 'decy'", "EMAWeights has the settings decay")),
        (("--model.attention_mode", "argmax"), ("argmax", "soft")),
        (("--model.encoder.backbone", "vgg20"), ("vgg20", "vgg19")),
        (("--data.root", "nowhere", "--data.num_scenes", "0"), ("nowhere", "no such directory", "data.root")),
        (("--data.num_scenes", "5"), ("contains another dataset", "data.root")),
        (("--ckpt_path", "none.ckpt"), ("none.ckpt", "checkpoint not found")),
        (("--ckpt_path", __file__), ("test_cli.py", "not a checkpoint")),
    ],
)
def test_bad_input_is_one_line(
    config: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    check_error(capsys, ["fit", "--config", str(config), *arguments], *parts)


def test_settings_that_differ_from_the_checkpoint_are_refused(
    fit: Fit, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = str(fit("--trainer.max_epochs", "1") / "checkpoints" / "last.ckpt")
    for command in ("fit", "test"):
        arguments = [command, "--config", str(config), "--ckpt_path", checkpoint, "--model.decoder.hidden_size", "99"]
        check_error(capsys, arguments, "model.decoder.hidden_size is 99", "32 in the checkpoint", "init_from")
    arguments = ["fit", "--config", str(config), "--ckpt_path", checkpoint, "--model.init_from", "flickr8k-soft"]
    check_error(capsys, arguments, "ckpt_path", "init_from", "only one")


def test_the_private_method_of_lightning_that_is_overridden_exists() -> None:
    """It takes the settings of a checkpoint in another way; a new name would enable it again."""
    assert callable(LightningCLI._parse_ckpt_path)


def test_init_from_supplies_the_architecture_and_the_vocabulary(fit: Fit, config: Path, tmp_path: Path) -> None:
    """A config states only what differs: here the attention, soft to hard, and the objective."""
    source = fit("--trainer.max_epochs", "1", version="source") / "checkpoints" / "last.safetensors"
    settings = yaml.safe_load(config.read_text())
    del settings["model"]["encoder"], settings["model"]["generation"]
    estimator = {"class_path": "captioning.objectives.LeaveOneOut"}
    bound = {"class_path": "captioning.objectives.VariationalBound", "init_args": {"estimator": estimator}}
    settings["model"].update(decoder={"attention": "hard"}, objective=bound, init_from=str(source))
    config.write_text(yaml.safe_dump(settings))
    run = fit("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1", version="hard")
    soft, hard = (Captioner.from_pretrained(path) for path in (source, run / "checkpoints" / "last.safetensors"))
    assert hard.decoder.is_hard
    assert hard.vocabulary.tokens == soft.vocabulary.tokens
    assert hard.decoder.config == {**soft.decoder.config, "attention": "hard"}
    assert hard.generation == soft.generation


def help_text(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_help_shows_the_settings_of_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_text(capsys, "fit", "--help")
    for name in (
        "--threads",
        "--data.root",
        "--model.encoder.backbone",
        "--model.decoder.hidden_size",
        "--model.generation.num_beams",
        "--model.objective",
        "--trainer.max_epochs",
        "--ckpt_path",
    ):
        assert name in text
    assert "captioning.objectives.SelfCritical" in text
    text = help_text(capsys, "fit", "--model.objective.help", "VariationalBound")
    for name in ("estimator", "entropy_weight", "expectation_prob", "soft_warmup", "terms"):
        assert f"--model.objective.{name}" in text
    assert "rollout" not in text


def test_evaluation_requires_a_trained_model(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_error(capsys, ["test", "--config", str(config)], "requires a trained model", "--ckpt_path")


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
