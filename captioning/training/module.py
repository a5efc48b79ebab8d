"""The LightningModule: encoder, decoder, objective and optimizer; validation on generated captions."""

import dataclasses
import math
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from captioning.captioner import Captioner
from captioning.datasets.batch import Batch
from captioning.generation import GenerationConfig
from captioning.models.attention import AttentionMode, check_attention_mode
from captioning.models.checkpoint import build_model_header
from captioning.models.decoder import Decoder
from captioning.models.decoder_config import DecoderConfig
from captioning.models.encoder import Encoder, EncoderConfig
from captioning.objectives import CrossEntropy, Objective
from captioning.objectives.base import StepContext
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.training.initialization import load_initial_weights
from captioning.training.lr_scheduler import lr_scheduler_config, set_total_steps
from captioning.training.validation import Prediction, compute_metrics, evaluate, predict

_PROGRESS_BAR_METRICS = ("nll", "reward")


class CaptioningModule(pl.LightningModule):
    """Trains a captioning model with an objective and evaluates it on generated captions.

    Args:
        vocabulary: tokens in the order of their ids.
        objective: training objective; None for CrossEntropy with its defaults.
        encoder: settings of the encoder.
        decoder: settings of the decoder.
        generation: settings of caption generation in validation, and defaults of the model file.
        attention_mode: how a hard model attends in validation and inference; None for argmax.
        init_from: pretrained model, .safetensors file or .ckpt file whose weights the training starts from.
        optimizer: any torch optimizer.
        lr_scheduler: a torch scheduler, stepped every epoch, or WarmupCosineLR, stepped every optimizer step.
    """

    def __init__(
        self,
        vocabulary: list[str],
        objective: Objective | None = None,
        encoder: EncoderConfig = EncoderConfig(),
        decoder: DecoderConfig = DecoderConfig(),
        generation: GenerationConfig = GenerationConfig(),
        attention_mode: AttentionMode | None = None,
        init_from: str | None = None,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        lr_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__()
        # LightningCLI supplies plain values, with class_path for the objective. Other callers pass objects, of which a
        # checkpoint that is read with weights_only=True cannot hold the objective.
        not_saved = ["vocabulary", "generation", "attention_mode", "init_from", "optimizer", "lr_scheduler"]
        self.save_hyperparameters(ignore=[*not_saved, "objective", "encoder", "decoder"])
        if "_instantiator" in self.hparams:
            self.save_hyperparameters(ignore=[*not_saved, "_instantiator"])
        else:
            self.save_hyperparameters({"encoder": dataclasses.asdict(encoder), "decoder": dataclasses.asdict(decoder)})
        self.vocabulary = Vocabulary(vocabulary)
        self.encoder = Encoder(**dataclasses.asdict(encoder))
        feature_size, num_locations = self.encoder.feature_size, math.prod(self.encoder.grid_size)
        self.decoder = Decoder(len(vocabulary), feature_size, num_locations, **dataclasses.asdict(decoder))
        check_attention_mode(attention_mode, self.decoder.is_hard)
        self.attention_mode = attention_mode
        self.generation = generation
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.num_initial_tokens = 0
        if init_from is not None:
            self.num_initial_tokens = load_initial_weights(init_from, self.encoder, self.decoder, self.vocabulary)
        self.objective = CrossEntropy() if objective is None else objective
        self.objective.setup(self)
        self._predictions: list[Prediction] = []

    def training_step(self, batch: Batch) -> Tensor:
        loss, metrics = self.objective(self, self._encode(batch), batch, self._step_context())
        self.log("train/loss", loss)
        for name, value in metrics.items():
            self.log(f"train/{name}", value, prog_bar=name in _PROGRESS_BAR_METRICS)
        return loss

    def _step_context(self) -> StepContext:
        trainer: Any = self.trainer  # log_every_n_steps is set outside of its class
        step, num_steps, interval = trainer.global_step, trainer.estimated_stepping_batches, trainer.log_every_n_steps
        progress = None if math.isinf(num_steps) else step / num_steps
        should_log = interval > 0 and (step + 1) % interval == 0
        return StepContext(self.device, self.attention_mode, progress, should_log)

    def validation_step(self, batch: Batch) -> None:
        self._predictions += evaluate(self, batch, self._encode(batch))

    def test_step(self, batch: Batch) -> None:
        self._predictions += evaluate(self, batch, self._encode(batch))

    def on_validation_epoch_end(self) -> None:
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        self._log_metrics("test")

    def predict_step(self, batch: Batch) -> list[tuple[str, str]]:
        """Return (image path, caption) of each image."""
        predictions = predict(self, batch, self._encode(batch))
        return [(str(prediction.record.image_path), " ".join(prediction.words)) for prediction in predictions]

    def _log_metrics(self, stage: str) -> None:
        metrics = compute_metrics(self._predictions, self.trainer)
        self._predictions.clear()
        metrics = {f"{stage}/{name}": value for name, value in metrics.items()}
        self.log_dict(metrics, prog_bar=self.trainer.state.fn == "fit")

    def _encode(self, batch: Batch) -> Tensor:
        """Features (B, L, D), computed from pixels or completed from cached features."""
        if batch.features is None:
            return self.encoder(batch.pixels)
        return self.encoder.forward_tail(batch.features.float(), batch.num_tail_blocks)

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(parameter for parameter in self.parameters() if parameter.requires_grad)
        if self.lr_scheduler is None:
            return optimizer
        return [optimizer], [lr_scheduler_config(self.lr_scheduler(optimizer))]

    def on_train_start(self) -> None:
        loader: Any = self.trainer.train_dataloader
        self.objective.on_train_start(loader.dataset)
        set_total_steps(self.trainer)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        generation = dataclasses.asdict(self.generation)
        parts = (self.encoder, self.decoder, self.vocabulary)
        checkpoint["model_header"] = build_model_header(*parts, generation, self.attention_mode)

    def to_captioner(self) -> Captioner:
        """A captioner that shares the current weights."""
        generation = dataclasses.asdict(self.generation)
        return Captioner(self.encoder, self.decoder, self.vocabulary, self.attention_mode, **generation)
