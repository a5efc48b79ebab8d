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
from captioning.objectives.estimators import AttentionRollout, GradientEstimator
from captioning.objectives.scheduled_sampling import scheduled_inputs
from captioning.utils.errors import CaptioningError

ExpectationUnit = Literal["image", "batch"]


class BoundEstimate(NamedTuple):
    """A loss whose gradient estimates that of −L_s, and its parts; all scalars."""

    loss: Tensor
    score_function_term: Tensor  # (b − returns) log α_s, without λ_r
    reward: Tensor  # log p(y | s, a)
    baseline: Tensor
    attention_entropy: Tensor  # H[α], mean over tokens


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
        generator = step.make_generator()
        expectation_mask = self.sample_expectation_mask(len(features), generator)  # (B,)
        inputs = scheduled_inputs(model.decoder, features, batch, self.scheduled_sampling, step, attend_expectation)
        token_ids, lengths, inputs = (
            None if ids is None else ids.repeat_interleave(self.estimator.num_samples, dim=1)  # (B, C · S, …)
            for ids in (batch.token_ids, batch.lengths, inputs)
        )
        output = model.decoder(features, token_ids, lengths, self.attention_fn(expectation_mask, generator), inputs)
        rollout = AttentionRollout.from_decoder_output(
            output, self.estimator.num_samples, model.decoder, self.label_smoothing
        )
        bound = self.estimate(rollout, batch.num_captions)
        loss, term_metrics = add_terms(bound.loss, self.terms, output, features, batch)
        metrics = {
            "nll": -bound.reward,
            "reward": bound.reward,
            "baseline": bound.baseline,
            "attention_entropy": bound.attention_entropy,
            "expectation_fraction": expectation_mask.float().mean(),
            **term_metrics,
        }
        if step.should_log:
            metrics["score_function_grad_norm"] = self._score_function_grad_norm(model, bound)
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
        """How the decoder attends in training: samples, and the expectation where the mask is true."""
        sample_fn = self.estimator.attention_fn(generator)
        if not self.expectation_prob:
            return sample_fn
        return functools.partial(attend_mixed, expectation_mask=expectation_mask, attention_fn=sample_fn)

    def estimate(self, rollout: AttentionRollout, num_captions: int) -> BoundEstimate:
        """Estimate −L_s per caption, and update the estimator's state in training mode.

        Args:
            rollout: teacher-forced captions with sampled locations.
            num_captions: number of captions, without their S samples.
        """
        pathwise, returns, baseline, baseline_loss = self.estimator.estimate(rollout)
        attention_log_probs = rollout.attention_log_probs  # (R, S, T, L)
        sampled_log_probs = attention_log_probs.gather(-1, rollout.locations.clamp(min=0)[..., None]).squeeze(-1)
        advantages = (returns - baseline).detach() * rollout.is_sampled  # (R, S, T)
        entropies = -(attention_log_probs.exp() * attention_log_probs).sum(-1)  # (R, S, T), 0 for padding

        count = num_captions * self.estimator.num_samples
        score_function_term = -(advantages * sampled_log_probs).sum() / count
        loss = (
            -pathwise.sum() / count
            + self.estimator.score_function_weight * score_function_term
            - self.entropy_weight * entropies.sum() / count
        )
        if baseline_loss is not None:
            loss = loss + baseline_loss
        estimate = BoundEstimate(
            loss=loss,
            score_function_term=score_function_term,
            reward=rollout.rewards.detach().sum(-1).sum() / count,
            baseline=(baseline.detach() * rollout.token_mask)[..., 0].sum() / count,
            attention_entropy=entropies.detach().sum() / rollout.token_mask.sum(),
        )
        if self.training:
            self.estimator.update(rollout)
        return estimate

    def _score_function_grad_norm(self, model: CaptionModel, bound: BoundEstimate) -> Tensor:
        """Norm of the gradient of the score-function term. Requires a backward pass of its own."""
        parameters = [
            parameter
            for module in (model.encoder, model.decoder)
            for parameter in module.parameters()
            if parameter.requires_grad
        ]
        term = self.estimator.score_function_weight * bound.score_function_term
        gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
        return nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not None])
