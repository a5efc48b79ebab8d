"""Cross-entropy of the reference captions under teacher forcing."""

from collections.abc import Sequence

from torch import Tensor, nn

from captioning.datasets.batch import Batch
from captioning.models.attention import attend_expectation
from captioning.objectives.base import (
    CaptionModel,
    LossOutput,
    Objective,
    OutputTerm,
    StepContext,
    add_terms,
    caption_nll,
    check_fraction,
    setup_terms,
)
from captioning.objectives.scheduled_sampling import scheduled_inputs


class CrossEntropy(Objective):
    """−log p(y | a) of the reference captions, plus output terms (eq. 14 with DoublyStochastic).

    A hard model attends as at inference; its attention then receives no gradient, so hard models use CrossEntropy only
    as a part of WeightedSum.

    Args:
        label_smoothing: probability mass of the target distribution that is uniform over the vocabulary.
        scheduled_sampling: fraction of the input tokens that are sampled from the model at the end of the training;
            it grows linearly from 0.
        terms: penalties that are added to the loss.
    """

    def __init__(
        self, label_smoothing: float = 0.0, scheduled_sampling: float = 0.0, terms: Sequence[OutputTerm] = ()
    ) -> None:
        super().__init__()
        check_fraction("label_smoothing", label_smoothing)
        check_fraction("scheduled_sampling", scheduled_sampling)
        self.label_smoothing = label_smoothing
        self.scheduled_sampling = scheduled_sampling
        self.terms = nn.ModuleList(terms)

    def setup(self, model: CaptionModel) -> None:
        setup_terms(self.terms, model)

    def forward(self, model: CaptionModel, features: Tensor, batch: Batch, step: StepContext) -> LossOutput:
        attention_fn = step.make_attention_fn() if model.decoder.is_hard else attend_expectation
        inputs = scheduled_inputs(model.decoder, features, batch, self.scheduled_sampling, step, attention_fn)
        output = model.decoder(features, batch.token_ids, batch.lengths, attention_fn, inputs)
        nll = caption_nll(output.logits, output.targets, batch.num_captions, self.label_smoothing)
        loss, metrics = add_terms(nll, self.terms, output, features, batch)
        return LossOutput(loss, {"nll": nll.detach(), **metrics})
