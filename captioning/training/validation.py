"""Generated captions of a batch, and their metrics in validation and test."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor

from captioning.datasets.batch import Batch
from captioning.datasets.record import Record
from captioning.evaluation import scoring
from captioning.evaluation.synthetic_metrics import caption_accuracy, pointing_game
from captioning.evaluation.tables import align_columns
from captioning.generation import generate
from captioning.objectives.base import CaptionModel, StepContext
from captioning.preprocessing.tokenizer import tokenize
from captioning.utils.errors import CaptioningError

_FIT_METRICS = ("bleu4", "rouge_l", "cider_d")  # logged during training; validate and test report all


class Prediction(NamedTuple):
    """A generated caption and the record of its image."""

    record: Record
    words: list[str]
    attention_maps: np.ndarray  # (T, rows, columns)
    nll: float = 0.0  # of the references, summed over tokens and captions
    num_captions: int = 0  # number of references


def evaluate(model: CaptionModel, batch: Batch, features: Tensor) -> list[Prediction]:
    """The generated caption of each image, with the negative log-likelihood of its references.

    Args:
        model: the model.
        batch: B images with reference captions.
        features: (B, L, D), their encoder output.
    """
    attention_fn = StepContext(features.device, model.attention_mode).make_attention_fn()
    output = model.decoder(features, batch.token_ids, batch.lengths, attention_fn)
    token_nll = F.cross_entropy(output.logits, output.targets, reduction="none").cpu()  # (N,)
    if not token_nll.isfinite().all():
        raise CaptioningError("the model outputs NaN or infinite values; lower the learning rate and start again")
    image_index = output.token_mask.cpu().nonzero()[:, 0]  # (N,)
    nll = token_nll.new_zeros(len(batch.records)).index_add(0, image_index, token_nll).tolist()
    num_captions = (batch.lengths > 0).sum(dim=1).tolist()
    return [
        prediction._replace(nll=image_nll, num_captions=number)
        for prediction, image_nll, number in zip(predict(model, batch, features), nll, num_captions, strict=True)
    ]


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
    """Corpus-level metrics of the predictions of all processes.

    With several datasets they are named ``<dataset>/<metric>``, and ``<metric>`` is their unweighted mean.
    """
    if trainer.world_size > 1:
        gathered: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(gathered, predictions)
        predictions = [prediction for part in gathered for prediction in part]
    by_dataset: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        by_dataset.setdefault(prediction.record.dataset, []).append(prediction)
    train_captions = [] if trainer.state.fn == "fit" else _train_captions(trainer)
    metrics = {
        name: _dataset_metrics(dataset_predictions, trainer, train_captions)
        for name, dataset_predictions in sorted(by_dataset.items())
    }
    first, *others = metrics.values()
    if not others:
        return first
    shared = [name for name in first if all(name in values for values in others)]
    named = {f"{dataset}/{name}": value for dataset, values in metrics.items() for name, value in values.items()}
    return named | {name: float(np.mean([values[name] for values in metrics.values()])) for name in shared}


def _dataset_metrics(
    predictions: Sequence[Prediction], trainer: pl.Trainer, train_captions: Sequence[list[str]]
) -> dict[str, float]:
    records, captions, attention_maps, nll, num_captions = zip(*predictions, strict=True)
    references = [[tokenize(caption) for caption in record.captions] for record in records]
    is_fit = trainer.state.fn == "fit"
    metrics = scoring.score_captions(captions, references, train_captions).metrics
    if is_fit:
        metrics = {name: metrics[name] for name in _FIT_METRICS}
    metrics["nll"] = sum(nll) / sum(num_captions)
    scenes = [scene for record in records if (scene := record.scene) is not None]
    if len(scenes) == len(records):
        metrics["caption_accuracy"] = caption_accuracy(captions, scenes)
        metrics["pointing_game"] = pointing_game(captions, attention_maps, scenes)
    elif not is_fit:  # too slow for every epoch
        meteor = scoring.meteor_or_warn(captions, references) if trainer.is_global_zero else {}
        metrics |= trainer.strategy.broadcast(meteor)
    return metrics


def format_metrics(values: Mapping[str, float], stage: str) -> str:
    """Table of the logged metrics ``stage/…``: a row per metric, a column per dataset and one for their mean."""
    table: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        *prefix, metric = name.removeprefix(f"{stage}/").split("/")
        if name.startswith(f"{stage}/"):
            table.setdefault(f"{stage}/{metric}", {})["/".join(prefix)] = float(value)
    columns = sorted({column for row in table.values() for column in row}, key=lambda column: (not column, column))
    rows = [["", *(column or "mean" for column in columns)]] if len(columns) > 1 else []
    for metric, row in sorted(table.items()):
        rows.append([metric, *(f"{row[column]:.4f}" if column in row else "" for column in columns)])
    return align_columns(rows)


def _train_captions(trainer: Any) -> list[list[str]]:  # mypy does not know trainer.datamodule
    records = trainer.datamodule.records
    return [tokenize(caption) for record in records if record.split == "train" for caption in record.captions]
