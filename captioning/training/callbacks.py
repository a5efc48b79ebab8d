"""What happens beside training: exact randomness, predictions kept, the config of the run."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import BasePredictionWriter, Callback
from pytorch_lightning.cli import SaveConfigCallback

from captioning.errors import CaptioningError


class StepSeed(Callback):
    """Seeds each training step by its number, so that a resumed run draws what it would have drawn."""

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0))  # where Lightning's seed_everything keeps it
        torch.manual_seed(seed + trainer.global_step * trainer.world_size + trainer.global_rank)


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
