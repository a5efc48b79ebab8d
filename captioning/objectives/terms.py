"""Output terms: penalties on the decoder output that are added to the loss of an objective."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from captioning.datasets.batch import Batch
from captioning.models.attention import attend_expectation
from captioning.models.decoder import Decoder, DecoderOutput
from captioning.objectives.base import CaptionModel, OutputTerm, check_positive
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError


def doubly_stochastic_penalty(attention_weights: Tensor, num_captions: int) -> Tensor:
    """Σ_i (1 − Σ_t α_ti)², averaged over captions (eq. 14).

    Args:
        attention_weights: (B, C, T, L), zero after the end of a caption.
        num_captions: number of captions among the B·C rows; missing ones would add L each.
    """
    totals = attention_weights.sum(dim=2)  # (B, C, L)
    is_caption = totals.sum(dim=-1, keepdim=True) > 0  # (B, C, 1)
    return ((1 - totals).square() * is_caption).sum() / num_captions


class DoublyStochastic(OutputTerm):
    """Doubly stochastic attention: each location receives a total weight of one over the caption (eq. 14).

    Args:
        weight: λ.
    """

    name = "doubly_stochastic"

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__(weight)

    def forward(self, output: DecoderOutput, features: Tensor, batch: Batch) -> Tensor:
        return doubly_stochastic_penalty(output.attention_weights, int(output.token_mask[..., 0].sum()))


class Distillation(OutputTerm):
    """Knowledge distillation from the model of ``init_from`` (Hinton et al. 2015), against forgetting in fine-tuning.

    The term is KL(teacher ‖ student) of the next-word distributions over the vocabulary of ``init_from``, summed over
    the tokens of a caption and averaged over captions. The teacher is a frozen copy of the initial decoder; it reads
    the same features and the reference captions, with words that are new to it as ``<unk>``. It is part of the
    checkpoint, since a resumed run could not restore the initial weights otherwise.

    Args:
        weight: factor of the term in the loss.
        temperature: softmax temperature of both distributions; the term is scaled by its square.
    """

    name = "distillation"
    teacher: Decoder
    num_tokens: Tensor  # size of the vocabulary of the teacher, ()

    def __init__(self, weight: float = 1.0, temperature: float = 1.0) -> None:
        super().__init__(weight)
        check_positive("Distillation.temperature", temperature)
        self.temperature = temperature

    def setup(self, model: CaptionModel) -> None:
        self.teacher = copy.deepcopy(model.decoder).requires_grad_(False).eval()
        self.register_buffer("num_tokens", torch.tensor(model.num_initial_tokens))

    def train(self, mode: bool = True) -> "Distillation":
        super().train(mode)
        if hasattr(self, "teacher"):
            self.teacher.eval()
        return self

    def forward(self, output: DecoderOutput, features: Tensor, batch: Batch) -> Tensor:
        if not self.num_tokens:  # not checked in setup(), since the checkpoint of a resumed run is loaded later
            raise CaptioningError("Distillation requires an initial model: set model.init_from")
        teacher_logits = self._teacher_logits(output, features, batch)
        log_probs, teacher_log_probs = (
            (logits[:, : self.num_tokens] / self.temperature).log_softmax(-1)  # (N, V of init_from)
            for logits in (output.logits, teacher_logits)
        )
        divergence = F.kl_div(log_probs, teacher_log_probs, reduction="sum", log_target=True)
        return self.temperature**2 * divergence / int(output.token_mask[..., 0].sum())

    @torch.no_grad()
    def _teacher_logits(self, output: DecoderOutput, features: Tensor, batch: Batch) -> Tensor:
        num_samples = output.token_mask.shape[1] // batch.token_ids.shape[1]
        token_ids = batch.token_ids.masked_fill(batch.token_ids >= self.num_tokens, Vocabulary.UNK_ID)
        token_ids, lengths = (ids.repeat_interleave(num_samples, dim=1) for ids in (token_ids, batch.lengths))
        return self.teacher(features, token_ids, lengths, attend_expectation).logits
