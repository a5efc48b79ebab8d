"""Variational lower bound of hard attention (Xu et al. 2015, section 4.1; equation numbers refer to it)."""

import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from captioning.datasets.batch import Batch
from captioning.models.attention import AttentionFn, attend_expectation, attend_mixed
from captioning.objectives.base import (
    CaptionModel,
    LossOutput,
    Objective,
    OutputTerm,
    StepContext,
    add_terms,
    caption_nll,
    check_fraction,
    check_minimum,
    setup_terms,
    zero_loss,
)
from captioning.objectives.diagnostics import ArgmaxProbe, gradient_norm
from captioning.objectives.estimators import GradientEstimator
from captioning.objectives.location_samples import LocationSamples
from captioning.objectives.moving_average import MovingAverage
from captioning.objectives.scheduled_sampling import scheduled_inputs
from captioning.utils.errors import CaptioningError

ExpectationUnit = Literal["image", "batch"]
_ADVANTAGE_DECAY = 0.99  # a slow average: the scale must not follow the advantages of single batches


class BoundEstimate(NamedTuple):
    """Loss terms whose gradients add up to an estimate of the gradient of −L_s, and statistics; all scalars."""

    terms: dict[str, Tensor]  # pathwise, score_function, and if they exist entropy and baseline; with their weights
    statistics: dict[str, Tensor]  # detached

    @property
    def loss(self) -> Tensor:
        return torch.stack(list(self.terms.values())).sum()


class VariationalBound(Objective):
    """−L_s, the negative variational lower bound on log p(y | a) of hard attention (eqs 10-12).

    Args:
        estimator: gradient estimator.
        label_smoothing: probability mass of the target distribution that is uniform over the vocabulary.
        scheduled_sampling: fraction of the input tokens that are sampled from the model at the end of the training;
            it grows linearly from 0.
        entropy_weight: λ_e, weight of the attention entropy Σ_t H[α_t].
        expectation_prob: probability that sampled locations are replaced by their expectation, as in soft attention.
        expectation_unit: draw this decision once per ``image`` (the paper) or per ``batch`` (the authors' code).
        soft_warmup: fraction of the training, from its start, that uses the expectation only.
        normalize_advantages: divide the advantages (reward − baseline) by the square root of a moving average of their
            squares, so that λ_r has the same effect for any caption length and vocabulary. The average uses earlier
            batches only, so the expected score-function term changes only by a positive factor.
        terms: penalties that are added to the loss.
    """

    def __init__(
        self,
        estimator: GradientEstimator,
        label_smoothing: float = 0.0,
        scheduled_sampling: float = 0.0,
        entropy_weight: float = 0.0,
        expectation_prob: float = 0.5,
        expectation_unit: ExpectationUnit = "image",
        soft_warmup: float = 0.0,
        normalize_advantages: bool = False,
        terms: Sequence[OutputTerm] = (),
    ) -> None:
        super().__init__()
        check_fraction("label_smoothing", label_smoothing)
        check_fraction("scheduled_sampling", scheduled_sampling)
        check_minimum("entropy_weight", entropy_weight, 0)
        check_fraction("expectation_prob", expectation_prob)
        check_fraction("soft_warmup", soft_warmup)
        if expectation_unit not in get_args(ExpectationUnit):
            raise CaptioningError(f"unknown expectation_unit '{expectation_unit}'; choose image or batch")
        self.estimator = estimator
        self.label_smoothing = label_smoothing
        self.scheduled_sampling = scheduled_sampling
        self.entropy_weight = entropy_weight
        self.expectation_prob = expectation_prob
        self.expectation_unit = expectation_unit
        self.soft_warmup = soft_warmup
        self.normalize_advantages = normalize_advantages
        self.advantage_square = MovingAverage(_ADVANTAGE_DECAY)
        self._probe: ArgmaxProbe | None = None
        self.terms = nn.ModuleList(terms)

    def setup(self, model: CaptionModel) -> None:
        if not model.decoder.is_hard:
            raise CaptioningError(
                "objective VariationalBound requires hard attention: set model.decoder.attention to hard, "
                "or use objective CrossEntropy"
            )
        self.estimator.setup(model.decoder.hidden_size)
        setup_terms(self.terms, model)

    def forward(self, model: CaptionModel, features: Tensor, batch: Batch, step: StepContext) -> LossOutput:
        if self.soft_warmup and step.require_progress("soft_warmup") < self.soft_warmup:
            return self._warmup_loss(model, features, batch, step)
        if self._probe is None:
            self._probe = ArgmaxProbe(model.decoder, features, batch)
        generator = step.make_generator()
        expectation_mask = self.sample_expectation_mask(len(features), generator)  # (B,)
        inputs = scheduled_inputs(model.decoder, features, batch, self.scheduled_sampling, step, attend_expectation)
        attention_fn, num_samples = self.attention_fn(expectation_mask, generator), self.estimator.num_samples
        output = model.decoder(features, batch.token_ids, batch.lengths, attention_fn, inputs, num_samples)
        samples = LocationSamples(output, num_samples, model.decoder, self.label_smoothing)
        bound = self.estimate(samples, batch.num_captions)
        loss, term_metrics = add_terms(bound.loss, self.terms, output, features, batch)
        metrics = {
            "nll": -bound.statistics["reward"],
            **bound.statistics,
            "expectation_fraction": expectation_mask.float().mean(),
            **term_metrics,
        }
        if step.should_log:
            modules = (model.encoder, model.decoder, self.estimator)
            metrics |= {f"{name}_grad_norm": gradient_norm(term, modules) for name, term in bound.terms.items()}
            metrics["argmax_changed"] = self._probe.update(model.decoder)
        return LossOutput(loss, metrics)

    def _warmup_loss(self, model: CaptionModel, features: Tensor, batch: Batch, step: StepContext) -> LossOutput:
        """Cross-entropy with the expectation at all locations."""
        inputs = scheduled_inputs(model.decoder, features, batch, self.scheduled_sampling, step, attend_expectation)
        output = model.decoder(features, batch.token_ids, batch.lengths, attend_expectation, inputs)
        nll = caption_nll(output.logits, output.targets, batch.num_captions, self.label_smoothing)
        loss, metrics = add_terms(nll, self.terms, output, features, batch)
        metrics = {"nll": nll.detach(), "expectation_fraction": torch.ones(()), **metrics}
        return LossOutput(loss + zero_loss(self.estimator), metrics)

    def sample_expectation_mask(self, num_images: int, generator: torch.Generator) -> Tensor:
        """(B,), true for images whose sampled locations are replaced by their expectation (section 4.1)."""
        count = num_images if self.expectation_unit == "image" else 1
        draws = torch.rand(count, generator=generator, device=generator.device)
        return (draws < self.expectation_prob).expand(num_images)

    def attention_fn(self, expectation_mask: Tensor, generator: torch.Generator) -> AttentionFn:
        """Attention function of training: sampled locations, or their expectation for images where the mask is true."""
        sample_fn = self.estimator.attention_fn(generator)
        if not self.expectation_prob:
            return sample_fn
        return functools.partial(attend_mixed, expectation_mask=expectation_mask, attention_fn=sample_fn)

    def estimate(self, samples: LocationSamples, num_captions: int) -> BoundEstimate:
        """Compute loss terms whose gradients estimate the gradient of −L_s, averaged over captions.

        In training mode this also updates the state of the estimator.

        Args:
            samples: teacher-forced captions with sampled locations.
            num_captions: number of captions in the batch; the S samples of a caption count once.
        """
        pathwise, returns, baseline, marginal, baseline_loss = self.estimator.estimate(samples)
        advantages = (returns - baseline).detach() * samples.is_sampled  # (R, S, T)
        score_function = advantages * samples.sampled_log_probs
        if marginal is not None:
            score_function = score_function + marginal

        count = num_captions * self.estimator.num_samples
        weight = self.estimator.score_function_weight * self._advantage_scale()
        terms = {"pathwise": -pathwise.sum() / count, "score_function": -weight * score_function.sum() / count}
        if self.entropy_weight:
            terms["entropy"] = -self.entropy_weight * samples.entropies.sum() / count
        if baseline_loss is not None:
            terms["baseline"] = baseline_loss
        sampled = advantages[samples.is_sampled]
        statistics = {
            "reward": samples.rewards.sum() / count,
            "baseline": (baseline * samples.token_mask)[..., 0].sum() / count,
            "advantage_variance": sampled.var(correction=0) if len(sampled) else sampled.sum(),
            "attention_entropy": samples.entropies.sum() / samples.token_mask.sum(),
        }
        if self.training:
            self.estimator.update(samples)
            self.advantage_square.update(advantages.square(), advantages != 0)
        return BoundEstimate(terms, {name: value.detach() for name, value in statistics.items()})

    def _advantage_scale(self) -> Tensor | float:
        """Factor of the advantages. With normalization, the first batch only initializes the average."""
        if not self.normalize_advantages:
            return 1.0
        return torch.where(self.advantage_square.num_updates > 0, self.advantage_square.value.rsqrt(), 0.0)
