"""From annotations to captions: pure functions over the decoder's ``start`` and ``step``, batched over pictures."""

from typing import NamedTuple

import torch
from torch import Tensor

from captioning.attention import Choose
from captioning.decoder import Decoder
from captioning.text import Vocabulary

# Never chosen. Their probability stays in the sum, so a caption's score is the one that teacher forcing would give it.
_UNSAYABLE = [Vocabulary.PAD, Vocabulary.START, Vocabulary.UNKNOWN]


class Found(NamedTuple):
    """A caption: ids without marks, log p of each of them and, last, of the end mark, and a map per id."""

    words: list[int]
    log_probabilities: list[float]
    weights: Tensor  # (len(words), L)


@torch.no_grad()
def greedy(
    decoder: Decoder, annotations: Tensor, maximum_length: int = 40, choose: Choose | None = None
) -> list[Found]:
    """The likeliest word at each step, for each of the pictures (B, L, D); ``choose`` is how hard attention looks."""
    memory, state = decoder.start(annotations)
    words = torch.full((len(annotations), 1), Vocabulary.START, device=annotations.device)  # (B, C = 1)
    ended = torch.zeros_like(words, dtype=torch.bool)
    chosen, chances, weights = [], [], []
    for step in range(maximum_length):
        log_probabilities, state, look = decoder.step(words, state, memory, choose)
        sayable = log_probabilities.clone()
        sayable[..., _UNSAYABLE] = -torch.inf
        if step == 0:
            sayable[..., Vocabulary.END] = -torch.inf  # a caption says at least one word
        words = sayable.argmax(dim=-1)
        chosen.append(words)
        chances.append(log_probabilities.gather(-1, words[..., None]).squeeze(-1))
        weights.append(look.weights)
        ended |= words == Vocabulary.END
        if ended.all():
            break
    return [
        _found(*rows)
        for rows in zip(
            torch.cat(chosen, 1).tolist(), torch.cat(chances, 1).tolist(), torch.cat(weights, 1).cpu(), strict=True
        )
    ]


def _found(words: list[int], log_probabilities: list[float], weights: Tensor) -> Found:
    end = words.index(Vocabulary.END) if Vocabulary.END in words else len(words)
    return Found(words[:end], log_probabilities[: end + 1], weights[:end])
