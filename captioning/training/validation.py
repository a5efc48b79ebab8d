"""Generated captions of a batch, and their metrics in validation and test."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from captioning.datasets.batch import Batch
from captioning.datasets.record import Record
from captioning.evaluation import scoring
from captioning.evaluation.synthetic_metrics import caption_accuracy, pointing_game
from captioning.generation import generate
from captioning.objectives.base import CaptionModel, StepContext, caption_nll
from captioning.preprocessing.tokenizer import tokenize

_FIT_METRICS = ("bleu4", "rouge_l", "cider_d")  # logged during training; validate and test report all


class Prediction(NamedTuple):
    """A generated caption and the record of its image."""

    record: Record
    words: list[str]
    attention_maps: np.ndarray  # (T, rows, columns)


def evaluate(model: CaptionModel, batch: Batch, features: Tensor) -> tuple[Tensor, list[Prediction]]:
    """Mean negative log-likelihood of the reference captions, and the generated caption of each image.

    Args:
        model: the model.
        batch: B images with reference captions.
        features: (B, L, D), their encoder output.
    """
    attention_fn = StepContext(features.device, model.attention_mode).make_attention_fn()
    output = model.decoder(features, batch.token_ids, batch.lengths, attention_fn)
    nll = caption_nll(output.logits, output.targets, batch.num_captions)
    return nll, predict(model, batch, features)


def predict(model: CaptionModel, batch: Batch, features: Tensor) -> list[Prediction]:
    """Generate the best caption of each image with the generation settings and the attention mode of the model.

    Args:
        model: the model.
        batch: B images.
        features: (B, L, D), their encoder output.
    """
    step = StepContext(features.device, model.attention_mode)
    generator, attention_fn = step.make_generator(), step.make_attention_fn()
    hypotheses = generate(model.decoder, features, model.generation, generator, attention_fn=attention_fn)
    return [
        Prediction(
            record,
            model.vocabulary.decode(best.token_ids),
            best.attention_weights.unflatten(1, model.encoder.grid_size).numpy(),
        )
        for record, (best, *_) in zip(batch.records, hypotheses, strict=True)
    ]


def compute_metrics(predictions: Sequence[Prediction], trainer: pl.Trainer) -> dict[str, float]:
    """Corpus-level metrics of the predictions of all processes."""
    if trainer.world_size > 1:
        gathered: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(gathered, predictions)
        predictions = [prediction for part in gathered for prediction in part]
    records, captions, attention_maps = zip(*predictions, strict=True)
    references = [[tokenize(caption) for caption in record.captions] for record in records]
    is_fit = trainer.state.fn == "fit"
    metrics = scoring.score_captions(captions, references, [] if is_fit else _train_captions(trainer)).metrics
    if is_fit:
        metrics = {name: metrics[name] for name in _FIT_METRICS}
    scenes = [scene for record in records if (scene := record.scene) is not None]
    if len(scenes) == len(records):
        metrics["caption_accuracy"] = caption_accuracy(captions, scenes)
        metrics["pointing_game"] = pointing_game(captions, attention_maps, scenes)
    elif not is_fit:  # too slow for every epoch
        meteor = scoring.meteor_or_warn(captions, references) if trainer.is_global_zero else {}
        metrics |= trainer.strategy.broadcast(meteor)
    return metrics


def _train_captions(trainer: Any) -> list[list[str]]:  # mypy does not know trainer.datamodule
    records = trainer.datamodule.records
    return [tokenize(caption) for record in records if record.split == "train" for caption in record.captions]
