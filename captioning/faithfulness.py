"""Whether maps are honest: how much a word's probability falls when the places that it looked at are covered.

A caption is read again, by teacher forcing, from copies of its picture on which some places are blurred. If a word's
map says what the word was said from, the word must suffer more when its most attended places are covered than when
others are. Deletion and insertion curves after Petsiuk et al. 2018, "RISE"; drawn scenes also tell whether a map points
at its object.

Shapes: W content words of a caption, T words, L places of the grid, S steps of covering.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from captioning import attention, metrics
from captioning.attention import Choose
from captioning.captioner import Captioner
from captioning.datasets.scenes import Scene
from captioning.decoder import Decoder
from captioning.encoders import Encoder
from captioning.errors import CaptioningError
from captioning.images import Picture, open_image
from captioning.text import Vocabulary

# The closed classes of English: such words follow from the grammar, and no one place of a picture shows them. What a
# preposition tells is seen at two places or more. Numbers are not here: how many there are can be seen.
FUNCTION_WORDS = frozenset(
    (
        # articles, and other words that stand before a noun
        "a an the this that these those some any each every either neither no all both another other such same own "
        # pronouns
        "i me my mine myself you your yours yourself he him his himself she her hers herself it its itself we us our "
        "ours ourselves they them their theirs themselves 's someone somebody something anyone anybody anything "
        "everyone everybody everything nobody nothing who whom whose which what "
        # prepositions
        "about above across after against along alongside among amongst around as at atop away before behind "
        "below beneath beside besides between beyond by down during for from in inside into like near next of off on "
        "onto out outside over past through throughout to together toward towards under underneath until up upon via "
        "with within without "
        # conjunctions
        "and but or nor so yet if because although though than when where whereas whether while "
        # auxiliaries
        "am is are was were be been being 're 'm has have had having do does did doing can could may might must shall "
        "should will would 'll 've 'd n't not "
        # adverbs that only lean on other words
        "there here then just very too also only even still again how why"
    ).split()
)
_BATCH = 32


class Said(NamedTuple):
    """A caption, and the map of each of its words."""

    ids: list[int]  # from the start mark to the end mark
    words: list[str]
    weights: Tensor  # (T, L), α

    @property
    def content(self) -> list[int]:
        """Where its content words are."""
        return [position for position, word in enumerate(self.words) if word not in FUNCTION_WORDS]


class Measured(NamedTuple):
    """What became of each content word of all captions as places were covered, step by step, in several orders."""

    pictures: int
    words: list[str]
    of_picture: np.ndarray  # (words,), the number of each word's picture
    log_chances: dict[str, np.ndarray]  # by order, (words, S + 1) or, of another picture's, (words, 2)
    pointing: dict[str, np.ndarray]  # by kind of word (pictures, 2), as of metrics.pointing_counts; empty on photos


@torch.inference_mode()
def measure(
    captioner: Captioner,
    pictures: Sequence[Picture],
    scenes: Sequence[Scene] | None = None,
    steps: int = 8,
    seed: int = 0,
) -> dict[str, Measured]:
    """Caption pictures, then cover their places: in the order of each word's map, and in others to compare with.

    The orders are ``most`` attended first, ``least`` attended first, ``random``, and ``other``: by the map of a word of
    another picture. Maps like the middle of a picture, and the cells that they choose lie together; ``other`` has both
    in common with the map, all but what is in the picture. Only its first step is read.

    Args:
        captioner: the model, its search and its look.
        pictures: what to caption; two at least.
        scenes: what is drawn on them, if they are drawn.
        steps: S, in how many steps all places are covered.
        seed: of the random orders, and of the choice of other pictures.

    Returns:
        by ``soft`` or ``hard`` the model as it is, by ``uniform`` the control: the same model made to look everywhere
        alike, whose maps say nothing and whose orders are random.
    """
    if captioner.look == "sample":
        raise CaptioningError("look 'sample' looks elsewhere each time a caption is read: take 'argmax' or 'expect'")
    if len(pictures) < 2:
        raise CaptioningError("maps are compared with those of other pictures: give at least 2 pictures")
    looks: dict[str, Choose | None] = {
        "hard" if captioner.decoder.hard else "soft": attention.way_to_look(captioner.look, captioner.generator),
        "uniform": attention.uniform,
    }
    encoder = captioner.encoder.for_inference()
    said: dict[str, list[Said]] = {name: [] for name in looks}
    for first in range(0, len(pictures), _BATCH):
        batch = [_open(captioner, picture) for picture in pictures[first : first + _BATCH]]
        annotations = encoder(torch.stack(batch))
        for name, choose in looks.items():
            said[name] += say(captioner, annotations, choose)
    for name, captions in said.items():
        if sum(bool(caption.content) for caption in captions) < 2:
            raise CaptioningError(
                f"of {len(pictures)} captions of the {name} model fewer than 2 have a content word (the first is "
                f"'{' '.join(captions[0].words)}'): there is nothing to measure; train the model for longer"
            )

    generator = torch.Generator().manual_seed(seed)
    places = said["uniform"][0].weights.shape[1]
    # Of each picture one random order, and one that ties between places are broken by. All its words share them, and
    # so does the control, to whom all places are ties: fewer copies of the picture have to go through the CNN.
    random, ties = (torch.stack([torch.randperm(places, generator=generator) for _ in pictures]) for _ in range(2))
    read: dict[str, list[dict[str, Tensor]]] = {name: [] for name in looks}
    for number, picture in enumerate(tqdm(pictures, desc="covering", unit="picture")):
        wanted = {}
        for name, captions in said.items():
            others = _others(captions, number, generator)
            wanted[name] = coverings(captions[number], others, random[number], ties[number], steps)
        own = {name: captions[number] for name, captions in said.items()}
        for name, log_chances in _read_covered(captioner, encoder, picture, own, looks, wanted):
            read[name].append(log_chances)
    return {
        name: _gather(captions, read[name], ties, captioner.encoder.grid, scenes) for name, captions in said.items()
    }


def say(captioner: Captioner, annotations: Tensor, choose: Choose | None) -> list[Said]:
    """Caption pictures (B, L, D).

    Maps are those of a reading, where α is at hand for hard attention too: the map of a hard look is 1 at one place and
    ranks no others, while α tells in which order the model would have looked at them.
    """
    captions = []
    found = captioner.search(captioner.decoder, annotations, captioner.generator, choose=choose)
    for picture, (best, *_) in zip(annotations, found, strict=True):
        ids = [Vocabulary.START, *best.words, Vocabulary.END]
        _, weights = _reading(captioner.decoder, picture[None], ids, choose)
        captions.append(Said(ids, captioner.vocabulary.decode(best.words), weights[0, : len(best.words)].cpu()))
    return captions


def ranked(weights: Tensor, ties: Tensor) -> Tensor:
    """Places in the order of their weights (W, L), the highest first; equal ones in the order (L,) of ``ties``."""
    return ties[weights[:, ties].argsort(dim=-1, descending=True, stable=True)]


def coverings(caption: Said, others: Tensor, random: Tensor, ties: Tensor, steps: int) -> dict[str, Tensor]:
    """By order, for each content word, which places are covered after each step (W, S + 1, L): none at first, then all.

    Args:
        caption: of a picture.
        others: (W, L), for each content word the map of another picture's.
        random: (L,), a random order of places.
        ties: (L,), the order of places that are attended alike.
        steps: S.
    """
    most = ranked(caption.weights[caption.content], ties)
    orders = {"most": most, "other": ranked(others, ties), "random": random.expand_as(most), "least": most.flip(-1)}
    places = most.shape[-1]
    counts = torch.tensor([-(-step * places // steps) for step in range(steps + 1)])  # rounded up: never no place
    covered = {name: order.argsort(dim=-1)[:, None] < counts[:, None] for name, order in orders.items()}
    return {**covered, "other": covered["other"][:, :2]}


def blur(pixels: Tensor, deviation: float) -> Tensor:
    """Pixels (…, S, S) seen through a Gaussian; at the edges its weight is shared by the pixels that there are."""
    line = torch.arange(pixels.shape[-1], device=pixels.device, dtype=pixels.dtype)
    weights = (-((line[:, None] - line) / deviation).square() / 2).exp()
    weights = weights / weights.sum(dim=1, keepdim=True)
    return weights @ pixels @ weights.T


def cover(pixels: Tensor, covered: Tensor) -> Tensor:
    """Copies of a picture (3, S, S), each blurred at the covered cells (N, rows, columns) of the grid, only there."""
    rows, columns = covered.shape[1:]
    height, width = pixels.shape[1] // rows, pixels.shape[2] // columns
    mask = covered.repeat_interleave(height, dim=1).repeat_interleave(width, dim=2)
    return torch.where(mask[:, None], blur(pixels, deviation=height), pixels)


def _open(captioner: Captioner, picture: Picture) -> Tensor:
    transform = captioner.encoder.transform
    return transform(open_image(picture, transform.size)).to(captioner.generator.device)


def _others(captions: Sequence[Said], number: int, generator: torch.Generator) -> Tensor:
    """For each content word of a picture the map (W, L) of some content word of another."""
    candidates = [one for place, one in enumerate(captions) if place != number and one.content]
    maps = [captions[number].weights[:0]]
    for _ in captions[number].content:
        other = candidates[int(torch.randint(len(candidates), (), generator=generator))]
        word = other.content[int(torch.randint(len(other.content), (), generator=generator))]
        maps.append(other.weights[word, None])
    return torch.cat(maps)


def _read_covered(
    captioner: Captioner,
    encoder: Encoder,
    picture: Picture,
    said: dict[str, Said],
    looks: dict[str, Choose | None],
    wanted: dict[str, dict[str, Tensor]],
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """For each look, by order, log p of the content words of its caption (W, S + 1); no copy is seen twice."""
    parts = [covered for orders in wanted.values() for covered in orders.values()]
    different, index = torch.cat([covered.flatten(0, 1) for covered in parts]).unique(dim=0, return_inverse=True)
    copies = cover(_open(captioner, picture), different.to(captioner.generator.device).unflatten(1, encoder.grid))
    annotations = encoder(copies)
    rows = iter(index.split([covered.shape[0] * covered.shape[1] for covered in parts]))
    for name, orders in wanted.items():
        log_chances = _reading(captioner.decoder, annotations, said[name].ids, looks[name])[0].cpu()
        words = torch.tensor(said[name].content, dtype=torch.long)[:, None]
        yield name, {order: log_chances[next(rows).view(it.shape[:2]), words] for order, it in orders.items()}


def _reading(decoder: Decoder, annotations: Tensor, ids: list[int], choose: Choose | None) -> tuple[Tensor, Tensor]:
    """log p (N, T) of a caption's words and end mark, and their maps (N, T, L), read from each of N pictures."""
    words = torch.tensor(ids, device=annotations.device).expand(len(annotations), 1, -1)
    lengths = torch.full((len(annotations), 1), len(ids) - 1)
    reading = decoder(annotations, words, lengths, choose)
    log_chances = -F.cross_entropy(reading.logits.float(), reading.targets, reduction="none")
    return log_chances.view(len(annotations), -1), reading.weights[:, 0].float()


def _gather(
    captions: Sequence[Said],
    read: Sequence[dict[str, Tensor]],
    ties: Tensor,
    grid: tuple[int, int],
    scenes: Sequence[Scene] | None,
) -> Measured:
    pointing = {}
    if scenes is not None:
        places = [ranked(one.weights, order)[:, 0] for one, order in zip(captions, ties, strict=True)]
        maps = [F.one_hot(highest, grid[0] * grid[1]).unflatten(1, grid).numpy() for highest in places]
        pointing = metrics.pointing_counts([one.words for one in captions], maps, scenes)
    return Measured(
        pictures=len(captions),
        words=[one.words[position] for one in captions for position in one.content],
        of_picture=np.repeat(np.arange(len(captions)), [len(one.content) for one in captions]),
        log_chances={order: torch.cat([one[order] for one in read]).numpy() for order in read[0]},
        pointing=pointing,
    )
