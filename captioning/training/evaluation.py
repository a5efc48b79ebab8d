"""What validation and testing make of the captions that were generated: scores of all of them together."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch

from captioning import metrics, scoring
from captioning.datasets.records import Record
from captioning.datasets.scenes import Scene
from captioning.text import tokenise

_WHILE_TRAINING = ("bleu4", "rouge_l", "cider")  # of the rest the table of validate and test says enough


class Generated(NamedTuple):
    """A caption of a picture, and what is known of the picture."""

    record: Record
    words: list[str]
    maps: np.ndarray  # (T, rows, columns)


def scores(generated: Sequence[Generated], trainer: pl.Trainer) -> dict[str, float]:
    """Corpus-level scores of what all processes have generated, on drawn scenes with truth and pointing."""
    if trainer.world_size > 1:
        everywhere: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(everywhere, generated)
        generated = [one for own in everywhere for one in own]
    records, captions, maps = zip(*generated, strict=True)
    references = [[tokenise(caption) for caption in record.captions] for record in records]
    training = trainer.state.fn == "fit"
    figures = scoring.score(captions, references, [] if training else _trained_on(trainer)).figures
    if training:
        figures = {name: figures[name] for name in _WHILE_TRAINING}
    if all("scene" in record.details for record in records):
        scenes = [Scene.from_json(record.details["scene"]) for record in records]
        figures["truth"] = metrics.truth(captions, scenes)
        figures["pointing"] = metrics.pointing(captions, maps, scenes)
    elif not training:  # too slow for every epoch
        own = scoring.meteor(captions, references) if trainer.is_global_zero else {}
        figures |= trainer.strategy.broadcast(own)
    return figures


def _trained_on(trainer: Any) -> list[list[str]]:  # mypy does not see its datamodule
    records = trainer.datamodule.records
    return [tokenise(caption) for record in records if record.split == "train" for caption in record.captions]
