"""Scheduled sampling: during training, part of the decoder's input tokens are sampled from the model."""

import torch
from torch import Tensor

from captioning.datasets.batch import Batch
from captioning.models.attention import AttentionFn
from captioning.models.decoder import Decoder
from captioning.objectives.base import StepContext


def scheduled_inputs(
    decoder: Decoder,
    features: Tensor,
    batch: Batch,
    final_prob: float,
    step: StepContext,
    attention_fn: AttentionFn | None,
) -> Tensor | None:
    """Decoder inputs (B, C, T+1) whose sampling probability grows linearly from 0 to ``final_prob`` over the training.

    Returns None, for teacher forcing, if ``final_prob`` is 0.
    """
    if not final_prob:
        return None
    sampling_prob = final_prob * step.require_progress("scheduled_sampling")
    return mix_in_model_tokens(decoder, features, batch, sampling_prob, attention_fn)


@torch.no_grad()
def mix_in_model_tokens(
    decoder: Decoder, features: Tensor, batch: Batch, sampling_prob: float, attention_fn: AttentionFn | None
) -> Tensor:
    """Replace reference tokens by tokens of the model with probability ``sampling_prob`` (Bengio et al. 2015).

    The tokens are sampled from a first pass with teacher forcing, all steps at once (Mihaylova and Martins 2019).

    Returns:
        token ids (B, C, T+1).
    """
    output = decoder(features, batch.token_ids, batch.lengths, attention_fn)
    sampled = torch.multinomial(output.logits.softmax(-1), 1).squeeze(1)  # (N,)
    index = output.token_mask.nonzero().to(sampled.device)  # (N, 3): image, caption, step
    model_tokens = batch.token_ids.clone()
    model_tokens[index[:, 0], index[:, 1], index[:, 2] + 1] = sampled
    use_model = torch.rand(model_tokens.shape, device=model_tokens.device) < sampling_prob
    return torch.where(use_model, model_tokens, batch.token_ids)
