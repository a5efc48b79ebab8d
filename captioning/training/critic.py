"""What self-critical training does beside the loss: it has captions found, and says what they are worth."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from captioning import losses, metrics, search
from captioning.attention import Choose, LookName
from captioning.datasets.records import Record
from captioning.decoder import Decoder
from captioning.errors import CaptioningError
from captioning.search import Found, Search
from captioning.text import Vocabulary, tokenise
from captioning.training.data import CaptionedPictures, pad
from captioning.training.look_alikes import find_look_alikes

Baseline = Literal["others", "greedy"]
Try = Literal["samples", "beam"]
_END = Vocabulary.MARKS[Vocabulary.END]


def check_settings(
    *,
    tries: Try,
    captions: int,
    baseline: Baseline,
    sharpness: float,
    likelihood_weight: float,
    look_alikes: int,
    look_alike_share: float,
    look: LookName | None,
) -> None:
    """Refuse what could not be learnt from."""
    if captions < (2 if baseline == "others" else 1):
        raise CaptioningError(f"captions {captions}: a caption is compared with others, so take at least 2")
    if sharpness <= 0:
        raise CaptioningError(f"sharpness {sharpness}: must be more than 0")
    if likelihood_weight < 0:
        raise CaptioningError(f"likelihood_weight {likelihood_weight}: must not be negative")
    if look_alikes < 0:
        raise CaptioningError(f"look_alikes {look_alikes}: must not be negative")
    if not 0 < look_alike_share <= 1:
        raise CaptioningError(f"look_alike_share {look_alike_share}: more than 0, up to 1; for none set look_alikes 0")
    if tries == "beam" and (sharpness, baseline) != (1, "others"):
        raise CaptioningError(
            "tries 'beam' wants captions compared with each other as they are: sharpness 1, baseline 'others'"
        )
    if look == "sample":
        raise CaptioningError("self_critical reads its captions again, at the same places: look 'argmax' or 'expect'")


class Critic:
    """CIDEr-D as a reward, its n-grams counted over the training pictures.

    The end counts as a word: else captions that break off ("a dog with a") would be worth as much as whole ones.

    Args:
        records: of the training split.
        vocabulary: of the model.
        look_alikes: of each picture the numbers of those that look like it; empty for no say of theirs.
        look_alike_share: of the reward that is what the caption would earn as one of those, on average. A model that
            knows its pictures by heart is seldom in doubt; what is said of their like tells it what might be meant.
    """

    def __init__(
        self,
        records: Sequence[Record],
        vocabulary: Vocabulary,
        look_alikes: Sequence[Sequence[int]] = (),
        look_alike_share: float = 0.0,
    ) -> None:
        self.vocabulary = vocabulary
        self.numbers = {record.image: number for number, record in enumerate(records)}
        self.cider = metrics.CiderD([[[*tokenise(said), _END] for said in record.captions] for record in records])
        self.look_alikes = look_alikes
        self.look_alike_share = look_alike_share

    def __call__(self, record: Record, caption: Found) -> float:
        number = self.numbers[record.image]
        others = self.look_alikes[number] if self.look_alikes else ()
        own, *theirs = self.cider.scores(self._words(caption), [number, *others])
        if not theirs:
            return own
        return (1 - self.look_alike_share) * own + self.look_alike_share * sum(theirs) / len(theirs)

    def _words(self, caption: Found) -> list[str]:
        return self.vocabulary.decode(caption.words) + [_END] * ended(caption)


def make_critic(pictures: CaptionedPictures, vocabulary: Vocabulary, look_alikes: int, share: float) -> Critic:
    """The critic of a run on these pictures, with so many look-alikes of each."""
    if not look_alikes:
        return Critic(pictures.records, vocabulary)
    if pictures.features is None:
        raise CaptioningError("model.look_alikes needs the feature cache: a frozen encoder and data.features")
    found = find_look_alikes(pictures.features, pictures.rows, look_alikes)
    return Critic(pictures.records, vocabulary, found, share)


def ended(caption: Found) -> bool:
    """Whether it came to its end, or was cut."""
    return len(caption.log_probabilities) > len(caption.words)


class Tried(NamedTuple):
    """Captions of the model's own, as of a batch, and what they are worth."""

    words: Tensor  # (B, C, T+1)
    lengths: Tensor  # (B, C), on the CPU
    rewards: Tensor  # (B, C), what each caption earned
    expected: Tensor  # (B, C), what was to be expected


def way_to_try(search: Search, tries: Try, captions: int, sharpness: float) -> Search:
    """How the captions of a trial are found, for a model that captions by ``search``."""
    if tries == "beam":
        return dataclasses.replace(search, beam=captions, groups=1, sample=False)
    return Search(search.maximum_length, sample=True, temperature=1 / sharpness)


def trial(
    critic: Critic,
    decoder: Decoder,
    annotations: Tensor,
    records: Sequence[Record],
    count: int,
    baseline: Baseline,
    by: Search,
    generator: torch.Generator,
    choose: Choose | None,
) -> Tried:
    """Find captions, so many of each picture, and judge them."""
    tried = by(decoder, annotations, generator, count, choose)
    # Long ones first, of each picture: the decoder then reads a small block.
    tried = [sorted(captions, key=lambda one: len(one.log_probabilities), reverse=True) for captions in tried]
    rewards = _judge(critic, records, tried)
    if baseline == "others":
        expected = losses.of_the_others(rewards)
    else:
        greedy = search.greedy(decoder, annotations, by.maximum_length, choose)
        expected = _judge(critic, records, [[one] for one in greedy]).expand_as(rewards)
    ids = [
        [[Vocabulary.START, *one.words, *([Vocabulary.END] if ended(one) else [])] for one in captions]
        for captions in tried
    ]
    words, lengths = pad(ids)
    device = annotations.device
    return Tried(words.to(device), lengths, rewards.to(device), expected.to(device))


def learn(
    decoder: Decoder, annotations: Tensor, tried: Tried, sharpness: float, choose: Choose | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of captions of p ** sharpness, read again with their gradient, and what to log of them."""
    words, lengths, rewards, expected = tried
    reading = decoder(annotations, words, lengths, choose)
    is_word = torch.arange(int(lengths.max())) < lengths[..., None]
    credit = (rewards - expected)[..., None].expand(is_word.shape)[is_word]
    is_first = (torch.arange(is_word.shape[-1]) == 0).expand(is_word.shape)[is_word].to(reading.logits.device)
    # What is never drawn is never judged, and would take up the probability of every word that earned little, until
    # nothing that is drawn is likely any more. No caption ends before its first word.
    logits = torch.where(
        is_first[:, None],
        search.without_unsayable(reading.logits, early=True),
        search.without_unsayable(reading.logits, early=False),
    )
    loss = losses.self_critical(sharpness * logits, reading.targets, credit, lengths.numel())
    return loss, {
        "likelihood": losses.likelihood(reading.logits.detach(), reading.targets, lengths.numel()),
        "reward": rewards.mean(),
        "baseline": expected.mean(),
        "words": lengths.float().mean(),
    }


def _judge(critic: Critic, records: Sequence[Record], captions: Sequence[Sequence[Found]]) -> Tensor:
    return torch.tensor([[critic(record, one) for one in own] for record, own in zip(records, captions, strict=True)])
