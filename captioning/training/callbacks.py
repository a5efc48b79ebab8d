"""Beside training: exact randomness, weights averaged, the encoder unfrozen, samples, predictions and config kept."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import BaseFinetuning, BasePredictionWriter, Callback, WeightAveraging
from pytorch_lightning.cli import SaveConfigCallback
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.optim import Optimizer

from captioning.encoders import Encoder
from captioning.errors import CaptioningError
from captioning.training.schedules import take_in_groups


class StepSeed(Callback):
    """Seeds each training batch by its number, so that a resumed run draws what it would have drawn."""

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0))  # where Lightning's seed_everything keeps it
        # Not by the optimiser's steps: batches whose gradients are accumulated would all draw alike.
        torch.manual_seed(seed + trainer.fit_loop.total_batch_idx * trainer.world_size + trainer.global_rank)


class AverageWeights(WeightAveraging):
    """Validates and keeps a running mean of the weights, which errs less than the weights of any one step.

    Lightning's EMAWeightAveraging rounds what it averages, a frozen encoder's weights too: the feature cache would no
    longer know them for those it was made with.

    Args:
        decay: share of the mean that is still left of it after another step; at first it is a plain mean of all steps.
        every: steps from one update to the next.
    """

    def __init__(self, decay: float = 0.995, every: int = 4) -> None:
        if not (0 <= decay < 1 and every >= 1):
            raise CaptioningError(f"AverageWeights wants a decay from 0 to below 1 and steps, not {decay} and {every}")
        self.every = every
        share = 1 - decay**every

        def average(mean: Tensor, current: Tensor, updates: Tensor | int) -> Tensor:
            return mean + (current - mean) * max(share, 1 / (int(updates) + 1))  # exact where nothing has changed

        super().__init__(avg_fn=average)

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return step_idx is not None and (step_idx + 1) % self.every == 0


class FineTuneEncoder(BaseFinetuning):
    """Lets a frozen encoder learn from some epoch on, more gently than the decoder.

    It stays in evaluation mode: no dropout, and no layers left out at random.

    Args:
        epoch: the first one in which it learns; they count from 0.
        rate: its learning rate as a share of the decoder's, whose schedule it follows.
        blocks: how many of its last blocks learn, where a convolution outside of blocks counts as one; 0 for all.
        train_batchnorm: let BatchNorm learn too; else its weights and statistics stay as they are.
    """

    def __init__(self, epoch: int, rate: float = 0.1, blocks: int = 0, train_batchnorm: bool = False) -> None:
        super().__init__()
        self.epoch = epoch
        self.rate = rate
        self.blocks = blocks
        self.train_batchnorm = train_batchnorm
        self._unfrozen: list[nn.Parameter] = []

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":  # the base class would freeze what is only to be tested
            super().setup(trainer, pl_module, stage)

    def freeze_before_training(self, pl_module: pl.LightningModule) -> None:
        if not _encoder(pl_module).frozen:
            raise CaptioningError(
                "FineTuneEncoder wants an encoder that begins frozen; set model.train_encoder to false"
            )
        _encoder(pl_module).unfreeze(self.blocks)  # too many blocks are told of now, not hours later
        _encoder(pl_module).freeze()
        self._unfrozen = []

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)  # gives the optimiser of a resumed run its groups back, and no more
        known = {parameter for group in trainer.optimizers[0].param_groups for parameter in group["params"]}
        if resumed := known & set(_encoder(pl_module).parameters()):
            self._unfrozen = _encoder(pl_module).unfreeze(self.blocks, self.train_batchnorm)
            if set(self._unfrozen) != resumed:
                raise CaptioningError(
                    "the checkpoint has another part of the encoder unfrozen; "
                    "give FineTuneEncoder the blocks and train_batchnorm that it was trained with"
                )
            self._tell_schedules(trainer)

    def finetune_function(self, pl_module: pl.LightningModule, epoch: int, optimizer: Optimizer) -> None:
        if epoch < self.epoch or self._unfrozen:
            return
        self._unfrozen = _encoder(pl_module).unfreeze(self.blocks, self.train_batchnorm)
        settings = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
        rates = {name: value * self.rate for name, value in settings.items() if name.endswith("lr")}  # initial_lr too
        optimizer.add_param_group({**settings, **rates, "params": self._unfrozen})
        self._tell_schedules(pl_module.trainer)

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        gradients = [parameter.grad for parameter in self._unfrozen if parameter.grad is not None]
        if trainer.world_size == 1 or not gradients:
            return
        # DDP averages the gradients only of what could learn when it was set up, and says nothing of the others.
        mean = trainer.strategy.reduce(torch.cat([gradient.flatten() for gradient in gradients]), reduce_op="mean")
        assert isinstance(mean, Tensor)
        parts = mean.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    @staticmethod
    def _tell_schedules(trainer: pl.Trainer) -> None:
        for configured in trainer.lr_scheduler_configs:
            take_in_groups(configured.scheduler)


def _encoder(module: pl.LightningModule) -> Encoder:
    assert isinstance(module.encoder, Encoder)
    return module.encoder


class LogCaptions(Callback):
    """Shows in TensorBoard, at each validation, what the model says of a few pictures and where it looks at each word.

    Args:
        pictures: how many; they are the first of the validation split, the same each time.
    """

    def __init__(self, pictures: int = 6) -> None:
        if pictures < 1:
            raise CaptioningError(f"LogCaptions wants pictures to caption, not {pictures}")
        self.pictures = pictures

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        settings: Any = trainer  # set where mypy does not see them
        if stage in ("fit", "validate") and not _boards(trainer) and not settings.fast_dev_run:
            rank_zero_warn(
                "LogCaptions has no TensorBoardLogger to log to, and logs nothing; "
                "set trainer.logger to pytorch_lightning.loggers.TensorBoardLogger"
            )

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        # Not when validation ends: by then AverageWeights may have put back the weights that were not validated.
        if batch_idx or trainer.sanity_checking or not trainer.is_global_zero or not _boards(trainer):
            return
        loader: Any = trainer.val_dataloaders
        module: Any = pl_module  # a CaptioningModule, which imports this file
        images = [record.image for record in loader.dataset.records[: self.pictures]]
        # Each time from the same seed, and from no one else's randomness.
        for number, caption in enumerate(module.captioner().each(images)):
            if isinstance(caption, CaptioningError):
                rank_zero_warn(f"LogCaptions passes over {caption}")
                continue
            tag = f"captions/{number}-{images[number].stem}"
            overlay = np.asarray(caption.overlay())
            for board in _boards(trainer):
                board.experiment.add_image(tag, overlay, trainer.global_step, dataformats="HWC")
                board.experiment.add_text(tag, caption.text, trainer.global_step)


def _boards(trainer: pl.Trainer) -> list[TensorBoardLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


class PredictionWriter(BasePredictionWriter):
    """Writes ``{"image", "caption"}``, a line a picture, as soon as a batch is captioned.

    Args:
        path: the file; if none is given, ``predictions.jsonl`` in the run's folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        super().__init__("batch")
        self.path = path

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.path = Path(self.path or Path(trainer.log_dir or ".") / "predictions.jsonl")
        if trainer.world_size > 1:
            self.path = self.path.with_suffix(f".{trainer.global_rank}{self.path.suffix}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text("")
        except OSError as error:
            raise CaptioningError(f"{self.path}: predictions cannot be written there ({error})") from None

    def write_on_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        prediction: Sequence[tuple[str, str]],
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        assert self.path is not None
        with self.path.open("a", encoding="utf-8") as file:
            for image, caption in prediction:
                file.write(json.dumps({"image": image, "caption": caption}, ensure_ascii=False) + "\n")


class SaveTrainingConfig(SaveConfigCallback):
    """Keeps the config of what was trained; testing a model leaves the config of its training alone."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            super().setup(trainer, pl_module, stage)
