"""Fine-tuning of an encoder that is frozen at first."""

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import yaml
from torch import Tensor
from torch.optim import lr_scheduler

from captioning.cli.main import main
from captioning.training.callbacks import EncoderFinetuning
from captioning.training.lr_scheduler import WarmupCosineLR
from captioning.training.module import CaptioningModule
from captioning.utils.errors import CaptioningError
from tests.training.conftest import Fit
from tests.training.test_cli import check_error, states
from tests.training.test_module import fast, make, trainer


class Watch(pl.Callback):
    """Keeps the encoder as it was before and after each epoch, and the learning rates of each step."""

    def __init__(self) -> None:
        self.encoders: list[dict[str, Tensor]] = []
        self.rates: list[list[float]] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.encoders.append({name: value.clone() for name, value in pl_module.encoder.state_dict().items()})

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_train_start(trainer, pl_module)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        self.rates.append([group["lr"] for group in trainer.optimizers[0].param_groups])

    def moved(self, epoch: int) -> set[str]:
        before, after = self.encoders[epoch : epoch + 2]
        return {name for name, value in before.items() if not torch.equal(value, after[name])}


def finetune(
    drawn: Path, callback: EncoderFinetuning, epochs: int = 2, **settings: Any
) -> tuple[CaptioningModule, Watch]:
    module, data = make(drawn, encoder={"frozen": True}, **settings)
    watch = Watch()
    trainer(max_epochs=epochs, limit_val_batches=1, num_sanity_val_steps=0, callbacks=[callback, watch]).fit(
        module, data
    )
    return module, watch


def convolutions(module: CaptioningModule) -> set[str]:
    return {name for name, value in module.encoder.named_parameters() if value.dim() == 4}


def test_the_encoder_is_trained_from_the_given_epoch_and_batchnorm_never(drawn: Path) -> None:
    module, watch = finetune(drawn, EncoderFinetuning(unfreeze_at_epoch=1))
    assert watch.moved(0) == set()
    assert watch.moved(1) == convolutions(module)
    assert not any(submodule.training for submodule in module.encoder.modules())


def test_batchnorm_is_trained_with_train_bn(drawn: Path) -> None:
    module, watch = finetune(drawn, EncoderFinetuning(unfreeze_at_epoch=0, train_bn=True))
    for epoch in (0, 1):  # validation in between sets BatchNorm to its statistics, and back
        assert watch.moved(epoch) == set(module.encoder.state_dict())


def test_only_the_last_blocks_are_trained_with_num_blocks(drawn: Path) -> None:
    _, watch = finetune(drawn, EncoderFinetuning(unfreeze_at_epoch=0, num_blocks=2), epochs=1)
    assert watch.moved(0) == {"backbone.head.0.weight", "backbone.head.3.weight"}


def test_frozen_blocks_process_each_image_once(drawn: Path, tmp_path: Path) -> None:
    """The rest goes on from the feature cache, and learns as it would without one."""
    encoders = []
    for cache in (None, tmp_path):
        module, data = make(drawn, encoder={"frozen": True}, feature_cache_dir=cache, optimizer=fast)
        sizes: list[int] = []
        module.encoder.backbone.stem[0].register_forward_hook(
            lambda _, inputs, __, sizes=sizes: sizes.append(len(inputs[0]))
        )
        callbacks = [EncoderFinetuning(unfreeze_at_epoch=0, num_blocks=2)]
        trainer(max_epochs=3, num_sanity_val_steps=0, callbacks=callbacks).fit(module, data)
        encoders.append(module.encoder.state_dict())
    num_images = sum(record.split != "test" for record in data.records)
    assert sum(size for size in sizes if size > 1) == num_images  # a batch of 1 is a blank image, to measure the grid
    for name, tensor in encoders[0].items():
        torch.testing.assert_close(encoders[1][name], tensor, atol=0.02, rtol=0.02, msg=name)


@pytest.mark.parametrize(
    "schedule",
    [
        None,
        WarmupCosineLR,
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (epoch + 1)),
        lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda _: 0.5),
        lambda optimizer: lr_scheduler.StepLR(optimizer, 1),
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 4),
        lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10),
    ],
    ids=["none", "warm-up", "lambda", "multiplicative", "step", "cosine", "plateau"],
)
def test_the_learning_rate_is_a_fraction_of_the_decoders_with_any_schedule(drawn: Path, schedule: Any) -> None:
    _, watch = finetune(
        drawn, EncoderFinetuning(unfreeze_at_epoch=1, lr_ratio=0.25), 4, optimizer=fast, lr_scheduler=schedule
    )
    assert [len(rates) for rates in watch.rates] == [1] * 6 + [2] * 18  # six steps make an epoch
    for decoder, encoder in watch.rates[6:]:
        assert encoder == pytest.approx(0.25 * decoder, rel=1e-6)
    assert (len({decoder for decoder, _ in watch.rates[6:]}) > 1) == (schedule is not None)


def add_callbacks(config: Path, **settings: Any) -> None:
    """Fine-tuning from the second of three epochs on, and checkpoints within and between them."""
    written = yaml.safe_load(config.read_text())
    written["model"]["encoder"]["frozen"] = True
    written["trainer"]["max_epochs"] = 3
    within = {"every_n_train_steps": 2, "save_top_k": -1, "filename": "within-{step}-"}
    between = {"monitor": "val/nll", "save_top_k": -1, "filename": "after-{epoch}-"}
    written["trainer"]["callbacks"] += [
        {
            "class_path": "captioning.training.callbacks.EncoderFinetuning",
            "init_args": {"unfreeze_at_epoch": 1, **settings},
        },
        {"class_path": "pytorch_lightning.callbacks.ModelCheckpoint", "init_args": within},
        {"class_path": "pytorch_lightning.callbacks.ModelCheckpoint", "init_args": between},
    ]
    config.write_text(yaml.safe_dump(written))


@pytest.mark.parametrize("settings", [{}, {"num_blocks": 2, "train_bn": True}], ids=["all", "last with BatchNorm"])
def test_a_resumed_run_equals_an_uninterrupted_one(config: Path, fit: Fit, settings: dict[str, Any]) -> None:
    """Stopped before the unfreezing or after it, within an epoch or between two: equal to the last bit."""
    add_callbacks(config, **settings)
    whole = fit(version="whole")
    weights, scores = states(whole)
    for number, (name, groups, epochs_left) in enumerate(
        (("within-step=4", 1, 3), ("after-epoch=0", 1, 2), ("within-step=8", 2, 2), ("after-epoch=1", 2, 1))
    ):
        (stopped,) = (whole / "checkpoints").glob(f"{name}-*.ckpt")
        (optimizer,) = torch.load(stopped, weights_only=True)["optimizer_states"]
        assert len(optimizer["param_groups"]) == groups
        resumed = fit("--ckpt_path", str(stopped), version=f"resumed{number}")
        weights_after, scores_after = states(resumed)
        assert scores_after == scores[-epochs_left:]
        for key, weight in weights.items():
            assert torch.equal(weight, weights_after[key]), (name, key)


def test_what_goes_on_from_it_caches_what_its_own_encoder_sees(config: Path, fit: Fit, tmp_path: Path) -> None:
    frozen = config.read_text().replace("frozen: false", "frozen: true")
    add_callbacks(config, num_blocks=2)
    tuned = fit(version="tuned") / "checkpoints" / "last.ckpt"
    config.write_text(frozen)
    run = fit("--model.init_from", str(tuned), "--trainer.max_epochs", "1", version="goes-on")
    caches = set((tmp_path / "features").glob("*/features.bin"))
    assert len(caches) == 2, "of what stayed frozen, and of the whole as it was then"
    main(["validate", "--config", str(config), "--ckpt_path", str(run / "checkpoints" / "last.ckpt")])
    assert set((tmp_path / "features").glob("*/features.bin")) == caches


def test_features_ahead_of_time_are_those_that_training_wants(
    config: Path, fit: Fit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_callbacks(config, num_blocks=2)
    main(["cache-features", "--config", str(config)])
    (ahead,) = (tmp_path / "features").glob("*/features.bin")
    fit("--trainer.max_epochs", "1")
    assert set((tmp_path / "features").glob("*/features.bin")) == {ahead}
    config.write_text(config.read_text().replace("num_blocks: 2", "num_blocks: 0"))
    check_error(capsys, ["cache-features", "--config", str(config)], "cannot be cached", "num_blocks")


def test_a_run_is_not_resumed_with_another_part_unfrozen(
    config: Path, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    add_callbacks(config)
    (stopped,) = (fit() / "checkpoints").glob("after-epoch=1-*.ckpt")
    text = config.read_text()
    config.write_text(
        text.replace("unfreeze_at_epoch: 1\n", "unfreeze_at_epoch: 1\n      num_blocks: 1\n").replace(
            "version: run", "version: other"
        )
    )
    check_error(
        capsys,
        ["fit", "--config", str(config), "--ckpt_path", str(stopped)],
        "other unfrozen encoder blocks",
        "num_blocks",
    )


def test_trainable_encoder_is_rejected(drawn: Path) -> None:
    module, data = make(drawn, encoder={"frozen": False})
    with pytest.raises(CaptioningError, match=r"requires a frozen encoder: set model\.encoder\.frozen to true"):
        trainer(max_epochs=1, callbacks=[EncoderFinetuning(unfreeze_at_epoch=0)]).fit(module, data)
    trainer(callbacks=[EncoderFinetuning(unfreeze_at_epoch=0)]).validate(
        module, data, verbose=False
    )  # where nothing learns


def test_too_many_blocks_are_rejected_before_training(drawn: Path) -> None:
    with pytest.raises(CaptioningError, match=r"num_blocks 7 is out of range: 'tiny' has 6 blocks"):
        finetune(drawn, EncoderFinetuning(unfreeze_at_epoch=5, num_blocks=7), epochs=1)


def test_a_module_is_fitted_for_a_second_time(drawn: Path) -> None:
    """It is frozen again at first, rather than left to learn at the decoder's rate."""
    module, _ = finetune(drawn, EncoderFinetuning(unfreeze_at_epoch=0, train_bn=True), epochs=1)
    _, data = make(drawn)
    watch = Watch()
    trainer(max_epochs=2, limit_val_batches=0, callbacks=[EncoderFinetuning(unfreeze_at_epoch=1), watch]).fit(
        module, data
    )
    assert watch.moved(0) == set()
    assert watch.moved(1) == convolutions(module)
