"""From annotations to captions: pure functions over the decoder's ``start`` and ``step``, batched over pictures.

Shapes: B pictures, K beams of each, V words, L places. The beams of a picture share its memory, which is never copied.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from captioning.attention import Choose
from captioning.decoder import Decoder, State
from captioning.errors import CaptioningError
from captioning.text import Vocabulary

# Never chosen. Their probability stays in the sum, so a caption's score is the one that teacher forcing would give it.
_UNSAYABLE = [Vocabulary.PAD, Vocabulary.START, Vocabulary.UNKNOWN]


class Found(NamedTuple):
    """A caption: ids without marks, log p of each of them and, last, of the end mark, and a map per id."""

    words: list[int]
    log_probabilities: list[float]
    weights: Tensor  # (len(words), L)


class _Step(NamedTuple):
    """The best candidates of one step, more of them than there are beams, and which of them were gone on with."""

    parents: Tensor  # (B, 2K), the beam that a candidate goes on from
    words: Tensor  # (B, 2K)
    log_probabilities: Tensor  # (B, 2K)
    weights: Tensor  # (B, beams before, L)
    kept: Tensor  # (B, K), the candidate that each beam is from now on


def greedy(
    decoder: Decoder, annotations: Tensor, maximum_length: int = 40, choose: Choose | None = None
) -> list[Found]:
    """The likeliest word at each step, for each of the pictures (B, L, D); ``choose`` is how hard attention looks."""
    return [found[0] for found in beam(decoder, annotations, 1, maximum_length, choose=choose)]


@torch.no_grad()
def beam(
    decoder: Decoder,
    annotations: Tensor,
    size: int,
    maximum_length: int = 40,
    length_penalty: float = 0.0,
    n_best: int = 1,
    choose: Choose | None = None,
) -> list[list[Found]]:
    """The likeliest captions that a beam finds, best first, for each of the pictures.

    Captions that ended come before captions that were cut; there are cut ones only if too few ended.

    Args:
        decoder: in evaluation mode.
        annotations: (B, L, D).
        size: K, how many unfinished captions are kept at each step.
        maximum_length: words after which a caption is cut.
        length_penalty: captions are compared by log p / length ** length_penalty, the end mark counted.
        n_best: how many captions of each picture to give back; at most K.
        choose: how hard attention looks.
    """
    if not 1 <= n_best <= size:
        raise CaptioningError(f"n_best {n_best}: take 1 to {size}, the size of the beam")
    memory, state = decoder.start(annotations)
    words = torch.full((len(annotations), 1), Vocabulary.START, device=annotations.device)
    totals = torch.zeros(words.shape, device=annotations.device)  # log p of each beam
    # The best captions that have ended: how good they are, and as which candidate of which step they ended.
    finished = totals.new_full((len(annotations), size), -torch.inf)
    ends = words.new_zeros(len(annotations), size, 2)
    steps: list[_Step] = []
    for length in range(1, maximum_length + 1):
        log_probabilities, state, look = decoder.step(words, state, memory, choose)
        sums = totals[..., None] + _sayable(log_probabilities, first=length == 1)  # (B, K, V)
        # Twice as many as beams are wanted: half of them may be ends.
        best, places = sums.flatten(1).topk(min(2 * size, sums[0].numel()))  # (B, 2K)
        parents, words = places // sums.shape[-1], places % sums.shape[-1]
        is_end = words == Vocabulary.END
        scores = (best / length**length_penalty).masked_fill(~is_end, -torch.inf)[:, :size]
        numbers = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
        here = torch.stack((torch.full_like(numbers, length - 1), numbers), dim=-1)
        finished, order = torch.cat((finished, scores), 1).topk(size)
        ends = _pick(torch.cat((ends, here), 1), order)
        totals, kept = best.masked_fill(is_end, -torch.inf).topk(min(size, best.shape[1]))
        said = log_probabilities.flatten(1).gather(1, places)
        steps.append(_Step(parents, words, said, look.weights.float(), kept))
        words, came_from = words.gather(1, kept), parents.gather(1, kept)
        state = State(*(_pick(part, came_from) for part in state))
        # What has not ended can only lose probability: this is the best that it may still come to.
        hope = totals.amax(dim=1) / maximum_length**length_penalty
        if (hope <= finished[:, n_best - 1]).all():
            break
    return _trace([_Step(*(part.cpu() for part in step)) for step in steps], finished.cpu(), ends.cpu(), n_best)


def _sayable(log_probabilities: Tensor, first: bool) -> Tensor:
    forbidden = [*_UNSAYABLE, Vocabulary.END] if first else _UNSAYABLE  # a caption says at least one word
    index = torch.tensor(forbidden, device=log_probabilities.device)
    return log_probabilities.index_fill(-1, index, -torch.inf)


def _pick(part: Tensor, index: Tensor) -> Tensor:
    """Of (B, N, ·) the rows (B, K) of each picture."""
    return part.gather(1, index[..., None].expand(-1, -1, part.shape[-1]))


def _trace(steps: list[_Step], finished: Tensor, ends: Tensor, n_best: int) -> list[list[Found]]:
    """Go back from the ends to the beginnings."""
    last = len(steps) - 1
    captions = []
    for picture in range(len(finished)):
        whole = (finished[picture, :n_best] > -torch.inf).sum()
        endings = ends[picture, :whole].tolist()
        endings += [(last, int(candidate)) for candidate in steps[last].kept[picture, : n_best - whole]]
        captions.append([_caption(steps, picture, step, candidate) for step, candidate in endings])
    return captions


def _caption(steps: list[_Step], picture: int, last: int, candidate: int) -> Found:
    words: list[int] = []
    log_probabilities: list[float] = []
    weights: list[Tensor] = []
    for number in range(last, -1, -1):
        step = steps[number]
        parent = int(step.parents[picture, candidate])
        words.insert(0, int(step.words[picture, candidate]))
        log_probabilities.insert(0, float(step.log_probabilities[picture, candidate]))
        weights.insert(0, step.weights[picture, parent])
        candidate = int(steps[number - 1].kept[picture, parent])  # of no use after the first step
    said = len(words) - (words[-1] == Vocabulary.END)
    return Found(words[:said], log_probabilities, torch.stack(weights[:said]))
