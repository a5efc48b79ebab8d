"""Callbacks: seeding, weight averaging, encoder fine-tuning, logging of captions, predictions, saving of the config."""

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

from captioning.models.encoder import Encoder
from captioning.training.lr_scheduler import sync_param_groups
from captioning.utils.errors import CaptioningError


class SeedEveryBatch(Callback):
    """Seeds the global generator for each training batch, so that a resumed run continues exactly."""

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0))  # set by Lightning's seed_everything
        # By batch, not by optimizer step: batches of one gradient accumulation must differ.
        torch.manual_seed(seed + trainer.fit_loop.total_batch_idx * trainer.world_size + trainer.global_rank)


class CheckMonitors(Callback):
    """Raises an error if a callback monitors a metric that validation does not log.

    The check runs after Lightning's sanity-check batches, before the first epoch.
    """

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            return
        metrics = sorted(name for name in trainer.callback_metrics if name.startswith("val/"))
        settings: Any = trainer  # callbacks is set outside of its class
        for callback in settings.callbacks:
            monitor, name = getattr(callback, "monitor", None), type(callback).__name__
            if monitor is not None and monitor not in metrics and not monitor.startswith("train/"):
                known = ", ".join(metrics)
                raise CaptioningError(f"{name}.monitor: there is no metric '{monitor}'; use one of {known}")


class EMAWeights(WeightAveraging):
    """Validates and saves an exponential moving average of the weights.

    Lightning's EMAWeightAveraging rounds averaged weights, those of a frozen encoder too, which would change the
    fingerprint of the feature cache.

    Args:
        decay: decay of the average per step; the first updates compute an unweighted mean.
        update_every_n_steps: number of steps between updates.
    """

    def __init__(self, decay: float = 0.995, update_every_n_steps: int = 4) -> None:
        if not 0 <= decay < 1:
            raise CaptioningError(f"EMAWeights.decay must be in [0, 1), got {decay}")
        if update_every_n_steps < 1:
            raise CaptioningError(f"EMAWeights.update_every_n_steps must be >= 1, got {update_every_n_steps}")
        self.update_every_n_steps = update_every_n_steps
        weight = 1 - decay**update_every_n_steps

        def average(mean: Tensor, current: Tensor, updates: Tensor | int) -> Tensor:
            return mean + (current - mean) * max(weight, 1 / (int(updates) + 1))  # exact for constant weights

        super().__init__(avg_fn=average)

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return step_idx is not None and (step_idx + 1) % self.update_every_n_steps == 0


class EncoderFinetuning(BaseFinetuning):
    """Unfreezes a frozen encoder at an epoch, with a lower learning rate than the decoder's.

    The encoder stays in evaluation mode: no dropout and no stochastic depth.

    Args:
        unfreeze_at_epoch: first epoch in which the encoder is trained, counted from 0.
        lr_ratio: its learning rate as a fraction of the decoder's, whose schedule it follows.
        num_blocks: number of last blocks to train; a convolution outside of blocks counts as one; 0 for all.
        train_bn: train BatchNorm layers too; otherwise their weights and statistics stay fixed.
    """

    def __init__(
        self, unfreeze_at_epoch: int, lr_ratio: float = 0.1, num_blocks: int = 0, train_bn: bool = False
    ) -> None:
        super().__init__()
        self.unfreeze_at_epoch = unfreeze_at_epoch
        self.lr_ratio = lr_ratio
        self.num_blocks = num_blocks
        self.train_bn = train_bn
        self._unfrozen: list[nn.Parameter] = []

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":  # the base class would freeze the encoder in other stages too
            super().setup(trainer, pl_module, stage)

    def freeze_before_training(self, pl_module: pl.LightningModule) -> None:
        if not _encoder(pl_module).frozen:
            raise CaptioningError("EncoderFinetuning requires a frozen encoder: set model.encoder.frozen to true")
        _encoder(pl_module).unfreeze(self.num_blocks)  # reports a wrong number of blocks now, not at the epoch
        _encoder(pl_module).freeze()
        self._unfrozen = []

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)  # restores only the optimizer groups of a resumed run
        known = {parameter for group in trainer.optimizers[0].param_groups for parameter in group["params"]}
        if resumed := known & set(_encoder(pl_module).parameters()):
            self._unfrozen = _encoder(pl_module).unfreeze(self.num_blocks, self.train_bn)
            if set(self._unfrozen) != resumed:
                raise CaptioningError(
                    "the checkpoint was trained with other unfrozen encoder blocks; "
                    "set num_blocks and train_bn of EncoderFinetuning as in its config"
                )
            self._sync_lr_schedulers(trainer)

    def finetune_function(self, pl_module: pl.LightningModule, epoch: int, optimizer: Optimizer) -> None:
        if epoch < self.unfreeze_at_epoch or self._unfrozen:
            return
        self._unfrozen = _encoder(pl_module).unfreeze(self.num_blocks, self.train_bn)
        settings = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
        rates = {
            name: value * self.lr_ratio for name, value in settings.items() if name.endswith("lr")
        }  # initial_lr too
        optimizer.add_param_group({**settings, **rates, "params": self._unfrozen})
        self._sync_lr_schedulers(pl_module.trainer)

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        gradients = [parameter.grad for parameter in self._unfrozen if parameter.grad is not None]
        if trainer.world_size == 1 or not gradients:
            return
        # DDP averages gradients only of parameters that were trainable when it was set up.
        mean = trainer.strategy.reduce(torch.cat([gradient.flatten() for gradient in gradients]), reduce_op="mean")
        assert isinstance(mean, Tensor)
        parts = mean.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    @staticmethod
    def _sync_lr_schedulers(trainer: pl.Trainer) -> None:
        for config in trainer.lr_scheduler_configs:
            sync_param_groups(config.scheduler)


def _encoder(module: pl.LightningModule) -> Encoder:
    assert isinstance(module.encoder, Encoder)
    return module.encoder


def num_finetuned_blocks(trainer: Any) -> int | None:
    """How many of the last encoder blocks EncoderFinetuning trains: 0 means all; None if there is no such callback."""
    callbacks = (callback for callback in trainer.callbacks if isinstance(callback, EncoderFinetuning))
    return next((callback.num_blocks for callback in callbacks), None)


class LogCaptions(Callback):
    """Logs captions and attention overlays of a few validation images to TensorBoard at each validation.

    Args:
        num_images: number of images, from the start of the validation split.
    """

    def __init__(self, num_images: int = 6) -> None:
        if num_images < 1:
            raise CaptioningError(f"LogCaptions.num_images must be >= 1, got {num_images}")
        self.num_images = num_images

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        settings: Any = trainer  # fast_dev_run is set outside of its class
        if stage == "fit" and not _tensorboard_loggers(trainer) and not settings.fast_dev_run:
            rank_zero_warn(
                "LogCaptions logs nothing without a TensorBoardLogger; "
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
        # Not at the end of validation: EMAWeights may have restored the current weights by then.
        if batch_idx or trainer.sanity_checking or not trainer.is_global_zero or not _tensorboard_loggers(trainer):
            return
        loader: Any = trainer.val_dataloaders
        module: Any = pl_module  # a CaptioningModule, which imports this module indirectly
        images = [record.image_path for record in loader.dataset.records[: self.num_images]]
        # The captioner has its own generator, so the training is not affected.
        for index, caption in enumerate(module.to_captioner().iter_captions(images)):
            if isinstance(caption, CaptioningError):
                rank_zero_warn(f"LogCaptions skips an image: {caption}")
                continue
            tag = f"captions/{index}-{images[index].stem}"
            overlay = np.asarray(caption.overlay())
            for logger in _tensorboard_loggers(trainer):
                logger.experiment.add_image(tag, overlay, trainer.global_step, dataformats="HWC")
                logger.experiment.add_text(tag, caption.text, trainer.global_step)


def _tensorboard_loggers(trainer: pl.Trainer) -> list[TensorBoardLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


class PredictionWriter(BasePredictionWriter):
    """Writes ``{"image", "caption"}`` as one JSON line per image, after each batch.

    Args:
        path: output file; by default ``predictions.jsonl`` in the run directory.
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
            raise CaptioningError(
                f"{self.path}: predictions cannot be written ({error}); set another --predictions.path"
            ) from None

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
    """Saves the config in ``fit`` only, so that testing does not overwrite the config of the training."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            super().setup(trainer, pl_module, stage)
