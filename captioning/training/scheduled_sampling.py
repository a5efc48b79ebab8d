"""Scheduled sampling: a model in training is told some of its own words instead of the true ones."""

import torch
from torch import Tensor

from captioning.attention import Choose
from captioning.decoder import Decoder
from captioning.training.data import Batch


@torch.no_grad()
def with_own_words(decoder: Decoder, annotations: Tensor, batch: Batch, share: float, choose: Choose | None) -> Tensor:
    """The batch's words (B, C, T+1), a share of them the model's own (Bengio et al. 2015).

    Its own words are drawn from a first reading of the truth, all steps at once (Mihaylova and Martins 2019).
    """
    reading = decoder(annotations, batch.words, batch.lengths, choose)
    drawn = torch.multinomial(reading.logits.softmax(-1), 1).squeeze(1)
    steps = int(batch.lengths.max())
    places = (torch.arange(steps) < batch.lengths[..., None]).nonzero().to(drawn.device)  # (N, 3)
    own = batch.words.clone()
    own[places[:, 0], places[:, 1], places[:, 2] + 1] = drawn
    return torch.where(torch.rand(own.shape, device=own.device) < share, own, batch.words)
