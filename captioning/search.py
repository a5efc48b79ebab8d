"""From annotations to captions: pure functions over the decoder's ``start`` and ``step``, batched over pictures.

Shapes: B pictures, K beams of each in G groups, C candidates of each group, V words, L places. The beams of a picture
share its memory, which is never copied.
"""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from captioning.attention import Choose
from captioning.decoder import Decoder, Memory, State
from captioning.errors import CaptioningError
from captioning.text import Vocabulary

# Never chosen. Their probability stays in the sum, so a caption's score is the one that teacher forcing would give it.
_UNSAYABLE = [Vocabulary.PAD, Vocabulary.START, Vocabulary.UNKNOWN]
# Share of the pictures: to go on without those that have their captions takes a copy of what the others need.
_WORTH_LEAVING_OUT = 0.2


class Found(NamedTuple):
    """A caption: ids without marks, log p of each of them and, last, of the end mark, and a map per id."""

    words: list[int]
    log_probabilities: list[float]
    weights: Tensor  # (len(words), L)


@dataclasses.dataclass(frozen=True)
class Search:
    """How captions are found: by a beam or, if told to, by chance.

    Args:
        maximum_length: words after which a caption is cut.
        minimum_length: words before which it does not end.
        no_repeat: so many words in a row are never said twice; 0 lets them.
        beam: how many captions at a time the search keeps; 1 is greedy.
        length_penalty: power of a caption's length that its log-probability is divided by, to compare it with others.
        groups: beams are parted into so many groups, which are kept from saying the same.
        diversity: what a word costs a group, in log-probability, for each beam of the groups before that says it.
        sample: draw words by their chances instead; ``beam``, ``length_penalty`` and ``groups`` then mean nothing.
        temperature: below 1 likely words are drawn more often than their chances say, above 1 less often.
        top_k: draw among so many of the likeliest words only; 0 for all.
        nucleus: draw among the likeliest words that have this share of the chances together.
    """

    maximum_length: int = 40
    minimum_length: int = 1
    no_repeat: int = 0
    beam: int = 1
    length_penalty: float = 0.0
    groups: int = 1
    diversity: float = 0.5
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    nucleus: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.minimum_length <= self.maximum_length:
            raise CaptioningError(
                f"minimum_length {self.minimum_length}: take 1 to {self.maximum_length}, the maximum_length"
            )
        if self.beam < 1:
            raise CaptioningError(f"beam {self.beam}: take at least 1")
        if self.groups < 1 or self.beam % self.groups:
            raise CaptioningError(f"groups {self.groups}: must divide the beam of {self.beam}")
        if self.temperature <= 0:
            raise CaptioningError(f"temperature {self.temperature}: must be more than 0")
        if not 0 < self.nucleus <= 1:
            raise CaptioningError(f"nucleus {self.nucleus}: a share above 0 and up to 1")
        for name in ("no_repeat", "top_k", "diversity", "length_penalty"):
            if getattr(self, name) < 0:
                raise CaptioningError(f"{name} {getattr(self, name)}: must not be negative")

    def check_count(self, n_best: int) -> None:
        """Refuse to look for more captions of a picture than can be found."""
        most = n_best if self.sample else self.beam
        if not 1 <= n_best <= most:
            raise CaptioningError(f"n_best {n_best}: take 1 to {most}, the size of the beam, or a larger beam")

    def __call__(
        self,
        decoder: Decoder,
        annotations: Tensor,
        generator: torch.Generator,
        n_best: int = 1,
        choose: Choose | None = None,
    ) -> list[list[Found]]:
        """For each of the pictures (B, L, D) its captions, best first.

        Args:
            decoder: in evaluation mode.
            annotations: (B, L, D).
            generator: the chance of ``sample``.
            n_best: how many captions of each picture; of a beam at most its size, and fewer if its groups agree.
            choose: how hard attention looks.
        """
        self.check_count(n_best)
        if self.sample:
            return sample(self, decoder, annotations, generator, n_best, choose)
        return beam(self, decoder, annotations, n_best, choose)


def greedy(
    decoder: Decoder, annotations: Tensor, maximum_length: int = 40, choose: Choose | None = None
) -> list[Found]:
    """The likeliest word at each step, for each of the pictures (B, L, D); ``choose`` is how hard attention looks."""
    return [found[0] for found in beam(Search(maximum_length), decoder, annotations, choose=choose)]


@torch.no_grad()
def sample(
    search: Search,
    decoder: Decoder,
    annotations: Tensor,
    generator: torch.Generator,
    count: int = 1,
    choose: Choose | None = None,
) -> list[list[Found]]:
    """Captions drawn word by word, the likeliest first; log-probabilities are the model's own, whatever is narrowed."""
    memory, state = decoder.start(annotations)
    state = State(*(part.expand(-1, count, -1) for part in state))
    words = torch.full((len(annotations), count), Vocabulary.START, device=annotations.device)
    said = words.new_empty(len(annotations), count, 0)
    ended = torch.zeros_like(words, dtype=torch.bool)
    log_probabilities, weights = [], []
    while said.shape[-1] < search.maximum_length and not ended.all():
        of_words, state, look = decoder.step(words, state, memory, choose)
        narrowed = _narrow(_sayable(search, of_words, said) / search.temperature, search.top_k, search.nucleus)
        words = torch.multinomial(narrowed.softmax(-1).flatten(0, 1), 1, generator=generator).view(words.shape)
        log_probabilities.append(of_words.gather(-1, words[..., None]).squeeze(-1))
        weights.append(look.weights.float())
        words = words.masked_fill(ended, Vocabulary.PAD)
        said = torch.cat((said, words[..., None]), -1)
        ended |= words == Vocabulary.END
    lengths = (said != Vocabulary.PAD).sum(-1).tolist()
    ids, chances = said.tolist(), torch.stack(log_probabilities, -1).tolist()
    maps = torch.stack(weights, 2).cpu()  # (B, count, T, L)
    captions = []
    for picture, of_picture in enumerate(lengths):
        found = []
        for number, length in enumerate(of_picture):
            real = ids[picture][number][: length - (ids[picture][number][length - 1] == Vocabulary.END)]
            found.append(Found(real, chances[picture][number][:length], maps[picture, number, : len(real)]))
        captions.append(sorted(found, key=lambda one: sum(one.log_probabilities), reverse=True))
    return captions


class _Step(NamedTuple):
    """The best candidates of one step, more of them than there are beams, and which of them were gone on with.

    Plain numbers, but for the maps: to take them out of tensors one by one would take longer than to find them.
    """

    parents: list[list[int]]  # (B, G·C), the beam that a candidate goes on from
    words: list[list[int]]  # (B, G·C)
    log_probabilities: list[list[float]]  # (B, G·C)
    weights: Tensor  # (B, beams before, L)
    kept: list[list[int]]  # (B, K), the candidate that each beam is from now on
    rows: dict[int, int]  # where among the B a picture is: those that have their captions are left out


@torch.no_grad()
def beam(
    search: Search, decoder: Decoder, annotations: Tensor, n_best: int = 1, choose: Choose | None = None
) -> list[list[Found]]:
    """The likeliest captions that a beam finds.

    Captions that ended come before captions that were cut; there are cut ones only if too few ended. Of several groups
    (Vijayakumar et al. 2018, "Diverse Beam Search") the best of each come first.
    """
    pictures, groups, width = len(annotations), search.groups, search.beam // search.groups
    memory, state = decoder.start(annotations)
    words = torch.full((pictures, 1), Vocabulary.START, device=annotations.device)
    said = words.new_empty(pictures, 1, 0)
    totals = torch.zeros(words.shape, device=annotations.device)  # log p of each beam
    # The best captions that have ended: how good they are, and as which candidate of which step they ended.
    finished = totals.new_full((pictures, groups, width), -torch.inf)
    ends = words.new_zeros(pictures, groups, width, 2)
    steps: list[_Step] = []
    rows = {picture: picture for picture in range(pictures)}
    captions: dict[int, list[Found]] = {}
    for length in range(1, search.maximum_length + 1):
        log_probabilities, state, look = decoder.step(words, state, memory, choose)
        beams, vocabulary = log_probabilities.shape[1:]
        allowed = _of_groups(_sayable(search, log_probabilities, said), groups)
        best, places, kept = _candidates(_of_groups(totals, groups), allowed, width, search.diversity)
        number = torch.arange(groups, device=places.device)[:, None]
        places = places + number * (beams // groups * vocabulary)  # among all groups' beams; the first step has but one
        kept = kept + number * best.shape[-1]
        is_end = places % vocabulary == Vocabulary.END
        scores = (best / length**search.length_penalty).masked_fill(~is_end, -torch.inf)[..., :width]
        candidates = (torch.arange(scores.shape[-1], device=scores.device) + number * best.shape[-1]).expand_as(scores)
        here = torch.stack((torch.full_like(candidates, length - 1), candidates), dim=-1)
        finished, order = torch.cat((finished, scores), -1).topk(width)
        ends = torch.cat((ends, here), 2).gather(2, order[..., None].expand(-1, -1, -1, 2))
        best, places, kept = best.flatten(1), places.flatten(1), kept.flatten(1)
        parents, words = places // vocabulary, places % vocabulary
        chances = log_probabilities.flatten(1).gather(1, places)
        maps = look.weights.float().cpu()
        steps.append(_Step(parents.tolist(), words.tolist(), chances.tolist(), maps, kept.tolist(), rows))
        totals = best.masked_fill(is_end.flatten(1), -torch.inf).gather(1, kept)
        words, came_from = words.gather(1, kept), parents.gather(1, kept)
        state = State(*(_pick(part, came_from) for part in state))
        said = torch.cat((_pick(said, came_from), words[..., None]), -1)
        over = _over(search, totals, finished, n_best)
        if length == search.maximum_length or all(over):
            captions |= _trace(steps, rows, finished, ends, totals, n_best)
            break
        if sum(over) >= _WORTH_LEAVING_OUT * len(over):
            own = {picture: row for picture, row in rows.items() if over[row]}
            captions |= _trace(steps, own, finished, ends, totals, n_best)
            others = [picture for picture, row in rows.items() if not over[row]]
            index = torch.tensor([rows[picture] for picture in others], device=words.device)
            memory, state = Memory(*(part[index] for part in memory)), State(*(part[index] for part in state))
            words, said, totals, finished, ends = (part[index] for part in (words, said, totals, finished, ends))
            rows = {picture: row for row, picture in enumerate(others)}
    return [captions[picture] for picture in range(pictures)]


def _over(search: Search, totals: Tensor, finished: Tensor, n_best: int) -> list[bool]:
    """Of each picture, whether nothing that goes on can better the captions that it has."""
    # What has not ended can only lose probability: this is the best that it may still come to.
    hope = totals.unflatten(1, (search.groups, -1)).amax(dim=-1) / search.maximum_length**search.length_penalty
    return (hope <= finished[..., -(-n_best // search.groups) - 1]).all(dim=-1).tolist()


def _of_groups(part: Tensor, groups: int) -> Tensor:
    """What belongs to the beams (B, K, …), parted into groups (B, G, K/G, …), all of which begin from the same one."""
    return part[:, None].expand(-1, groups, *part.shape[1:]) if part.shape[1] == 1 else part.unflatten(1, (groups, -1))


def _candidates(
    totals: Tensor, log_probabilities: Tensor, width: int, diversity: float
) -> tuple[Tensor, Tensor, Tensor]:
    """For each group its best candidates: (B, G, C) sums, places among its beams × V, and (B, G, width) to go on with.

    A word costs each group a little for every beam of the groups before it that goes on with the word.
    """
    pictures, groups, beams, vocabulary = log_probabilities.shape
    # Twice as many as beams are wanted: half of them may be ends.
    count, of_each = min(2 * width, beams * vocabulary), min(2 * width, vocabulary)
    taken = totals.new_zeros(pictures, 1, vocabulary)
    parts = []
    for group in range(groups):
        own = log_probabilities[:, group]
        # The best of all beams are among the best of each: the sums of all the others need not be known.
        ranks, words = (own - diversity * taken if group else own).topk(of_each)  # (B, beams, ·)
        ranks, order = (totals[:, group, :, None] + ranks).flatten(1).topk(count)
        words, parents = words.flatten(1).gather(1, order), order // of_each
        kept = ranks.masked_fill(words == Vocabulary.END, -torch.inf).topk(min(width, count)).indices
        chosen = words.gather(1, kept)[:, None]
        taken = taken.scatter_add(-1, chosen, torch.ones_like(chosen, dtype=taken.dtype))
        places = parents * vocabulary + words
        parts.append((totals[:, group].gather(1, parents) + own.flatten(1).gather(1, places), places, kept))
    best, places, kept = (torch.stack(part, 1) for part in zip(*parts, strict=True))
    return best, places, kept


def without_unsayable(scores: Tensor, early: bool) -> Tensor:
    """Scores (…, V) of words, −∞ of those that no caption says; ``early`` in one it may not end either."""
    unsayable = [*_UNSAYABLE, Vocabulary.END] if early else _UNSAYABLE
    return scores.index_fill(-1, torch.tensor(unsayable, device=scores.device), -torch.inf)


def _sayable(search: Search, log_probabilities: Tensor, said: Tensor) -> Tensor:
    """log p (B, K, V), −∞ where a word may not follow those (B, K, T) said so far."""
    length = said.shape[-1]
    allowed = without_unsayable(log_probabilities, early=length < search.minimum_length)
    if search.no_repeat and length >= search.no_repeat:
        rows = said.unfold(-1, search.no_repeat, 1)  # (B, K, ·, n), every n words in a row
        begun = (rows[..., :-1] == said[:, :, None, length - search.no_repeat + 1 :]).all(-1)
        repeats = torch.zeros_like(allowed).scatter_add(-1, rows[..., -1], begun.to(allowed.dtype)) > 0
        allowed = allowed.masked_fill(repeats, -torch.inf)
        # With nothing left to say a caption ends, however short.
        stuck = allowed.amax(-1, keepdim=True) == -torch.inf
        is_end = torch.arange(allowed.shape[-1], device=said.device) == Vocabulary.END
        allowed = torch.where(stuck & is_end, log_probabilities, allowed)
    return allowed


def _narrow(scores: Tensor, top_k: int, nucleus: float) -> Tensor:
    """Only the likeliest words' scores (…, V), the others −∞; the likeliest of all always stays."""
    if top_k:
        least = scores.topk(min(top_k, scores.shape[-1])).values[..., -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if nucleus < 1:
        ordered, order = scores.softmax(-1).sort(dim=-1, descending=True)
        beyond = ordered.cumsum(-1) - ordered >= nucleus  # the words before have that share already
        beyond[..., 0] = False  # a share may be so small that it is none in single precision
        scores = scores.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
    return scores


def _pick(part: Tensor, index: Tensor) -> Tensor:
    """Of (B, N, ·) the rows (B, K) of each picture."""
    return part.gather(1, index[..., None].expand(-1, -1, part.shape[-1]))


def _trace(
    steps: list[_Step], rows: dict[int, int], finished: Tensor, ends: Tensor, totals: Tensor, n_best: int
) -> dict[int, list[Found]]:
    """Go back from the ends (B, G, ·) to the beginnings; n captions of each picture, no two the same."""
    finished, ends, totals = finished.cpu(), ends.cpu(), totals.unflatten(1, (finished.shape[1], -1)).cpu()
    last = len(steps) - 1
    width = totals.shape[-1]
    captions = {}
    for picture, row in rows.items():
        endings = []  # sorted: ended before cut, then the best of each group, the better group's first
        for group, scores in enumerate(finished[row].tolist()):
            whole = sum(score > -torch.inf for score in scores)
            endings += [(False, rank, -scores[rank], *ends[row, group, rank].tolist()) for rank in range(whole)]
            kept = steps[last].kept[row][group * width : (group + 1) * width]
            cut = zip(totals[row, group].tolist(), kept, strict=True)
            for rank, (total, candidate) in enumerate(cut, start=whole):
                if rank < len(scores) and total > -torch.inf:
                    endings.append((True, rank, -total, last, candidate))
        found: dict[tuple[int, ...], Found] = {}
        for *_, step, candidate in sorted(endings):
            caption = _caption(steps, picture, step, candidate)
            found.setdefault(tuple(caption.words), caption)
            if len(found) == n_best:
                break
        captions[picture] = list(found.values())
    return captions


def _caption(steps: list[_Step], picture: int, last: int, candidate: int) -> Found:
    words: list[int] = []
    log_probabilities: list[float] = []
    weights: list[Tensor] = []
    for number in range(last, -1, -1):
        step, before = steps[number], steps[number - 1]  # before the first it is the last, and of no use
        row = step.rows[picture]
        parent = step.parents[row][candidate]
        words.insert(0, step.words[row][candidate])
        log_probabilities.insert(0, step.log_probabilities[row][candidate])
        weights.insert(0, step.weights[row, parent])
        candidate = before.kept[before.rows[picture]][parent]
    said = len(words) - (words[-1] == Vocabulary.END)
    return Found(words[:said], log_probabilities, torch.stack(weights[:said]))
