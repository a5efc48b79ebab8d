"""Interfaces of training objectives, and of the model, data and run state that they receive.

An objective computes the training loss of a batch. It owns its settings, loss, metrics and checkpoint state.
Shapes: B images, C captions per image, T target tokens, N tokens of the batch without padding, L locations, D feature
size, V vocabulary size.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from captioning.datasets.batch import Batch
from captioning.datasets.record import Record
from captioning.generation import GenerationConfig
from captioning.models.attention import AttentionFn, AttentionMode, make_attention_fn
from captioning.models.decoder import Decoder, DecoderOutput
from captioning.models.encoder import Encoder
from captioning.objectives.token_cross_entropy import token_cross_entropy
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError


class CaptionModel(Protocol):
    """The model that an objective trains: in practice the LightningModule."""

    encoder: Encoder
    decoder: Decoder
    vocabulary: Vocabulary
    generation: GenerationConfig
    attention_mode: AttentionMode | None
    num_initial_tokens: int  # the first tokens of the vocabulary, whose weights come from ``init_from``; 0 without it


class TrainData(Protocol):
    """The training split."""

    @property
    def records(self) -> Sequence[Record]: ...

    def mean_features(self) -> Tensor:
        """Encoder features averaged over locations, (N, D), one row per record.

        Raises CaptioningError if there is no feature cache.
        """
        ...


@dataclass(frozen=True)
class StepContext:
    """State of the run at a training step.

    Args:
        device: device of the model.
        attention_mode: attention mode of validation and inference.
        progress: fraction of the optimizer steps that are done, in [0, 1); None if their number is not known.
        should_log: whether the metrics of this step are logged. Expensive metrics are computed only then.
    """

    device: torch.device
    attention_mode: AttentionMode | None = None
    progress: float | None = 0.0
    should_log: bool = False

    def make_generator(self) -> torch.Generator:
        """A new generator on the model's device, seeded from the global generator and thus from the step's seed."""
        return torch.Generator(self.device).manual_seed(int(torch.randint(2**62, ())))

    def make_attention_fn(self) -> AttentionFn | None:
        """The attention function of validation and inference."""
        return make_attention_fn(self.attention_mode, self.make_generator())

    def require_progress(self, setting: str) -> float:
        """``progress``, or a CaptioningError that names the setting which depends on it."""
        if self.progress is None:
            raise CaptioningError(
                f"{setting} depends on the length of the training: set trainer.max_epochs or trainer.max_steps"
            )
        return self.progress


class LossOutput(NamedTuple):
    """Result of an objective."""

    loss: Tensor  # scalar, mean over captions
    metrics: dict[str, Tensor]  # detached scalars, logged as train/<name>


class Objective(nn.Module, ABC):
    """A training objective. Subclasses are selected in a config by ``class_path``."""

    def setup(self, model: CaptionModel) -> None:
        """Check that the objective applies to the model, and create parameters. Called once, when the model is built
        and initialized."""

    def on_train_start(self, data: TrainData) -> None:
        """Compute state that depends on the training data and is not saved in checkpoints."""

    @abstractmethod
    def forward(self, model: CaptionModel, features: Tensor, batch: Batch, step: StepContext) -> LossOutput:
        """Compute the loss of a batch.

        Args:
            model: the model.
            features: (B, L, D), encoder output.
            batch: images with reference captions.
            step: state of the run.
        """


class OutputTerm(nn.Module, ABC):
    """A penalty on the decoder output that an objective computes anyway; ``weight`` times its value joins the loss.

    Args:
        weight: factor of the term in the loss.
    """

    name: ClassVar[str]  # of the logged value, which is not multiplied by the weight

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        check_minimum(f"{type(self).__name__}.weight", weight, 0)
        self.weight = weight

    def setup(self, model: CaptionModel) -> None:
        """Check that the term applies to the model, and create state. Called once, after initialization."""

    @abstractmethod
    def forward(self, output: DecoderOutput, features: Tensor, batch: Batch) -> Tensor:
        """Compute the penalty, a scalar.

        Args:
            output: decoder output for the captions of the batch, each repeated S times in a row (S = 1 for
                cross-entropy, the number of sampled location sequences for the variational bound).
            features: (B, L, D), encoder output.
            batch: images with reference captions.
        """


def setup_terms(terms: Iterable[nn.Module], model: CaptionModel) -> None:
    """Set up the output terms of an objective."""
    for term in terms:
        assert isinstance(term, OutputTerm)
        term.setup(model)


def add_terms(
    loss: Tensor, terms: Iterable[nn.Module], output: DecoderOutput, features: Tensor, batch: Batch
) -> LossOutput:
    """Add weighted output terms to a loss. The metrics are the values of the terms."""
    metrics = {}
    for term in terms:
        assert isinstance(term, OutputTerm)
        value = term(output, features, batch)
        loss = loss + term.weight * value
        metrics[term.name] = value.detach()
    return LossOutput(loss, metrics)


def caption_nll(logits: Tensor, targets: Tensor, num_captions: int, label_smoothing: float = 0.0) -> Tensor:
    """−log p(y | a), summed over the tokens of a caption, averaged over captions.

    Args:
        logits: (N, V).
        targets: (N,).
        num_captions: number of captions that the tokens belong to.
        label_smoothing: probability mass of the target distribution that is uniform over the vocabulary.
    """
    return token_cross_entropy(logits, targets, label_smoothing).sum() / num_captions


def zero_loss(module: nn.Module) -> Tensor | float:
    """0 with a gradient of 0 for every parameter of ``module``.

    DistributedDataParallel requires that each parameter takes part in the loss of every step.
    """
    return sum(0 * parameter.sum() for parameter in module.parameters())


def check_fraction(name: str, value: float) -> None:
    """Raise CaptioningError if a setting is not in [0, 1]."""
    if not 0 <= value <= 1:
        raise CaptioningError(f"{name} must be in [0, 1], got {value}")


def check_minimum(name: str, value: float, minimum: float) -> None:
    """Raise CaptioningError if a setting is below its minimum."""
    if not value >= minimum:
        raise CaptioningError(f"{name} must be >= {minimum}, got {value}")


def check_positive(name: str, value: float) -> None:
    """Raise CaptioningError if a setting is not greater than 0."""
    if not value > 0:
        raise CaptioningError(f"{name} must be > 0, got {value}")
