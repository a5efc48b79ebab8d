import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from captioning import search
from captioning.attention import Look
from captioning.decoder import Decoder, Memory, State
from captioning.errors import CaptioningError
from captioning.search import Search
from captioning.text import Vocabulary


def make_decoder(seed: int = 0, end_bias: float = 0.0) -> Decoder:
    torch.manual_seed(seed)
    decoder = Decoder(12, 8, 6, embedding_size=6, hidden_size=8, attention_size=5).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(std=0.8)
        decoder.output.bias[Vocabulary.END] += end_bias
    return decoder


def beam(
    decoder: Decoder,
    annotations: torch.Tensor,
    size: int,
    maximum_length: int = 40,
    length_penalty: float = 0.0,
    n_best: int = 1,
    **settings,
) -> list[list[search.Found]]:
    how = Search(maximum_length, beam=size, length_penalty=length_penalty, **settings)
    return search.beam(how, decoder, annotations, n_best)


def reread(decoder: Decoder, annotations: torch.Tensor, words: list[int]) -> tuple[list[float], torch.Tensor]:
    """log p of each word and of the end, and the words' maps, by teacher forcing."""
    ids = torch.tensor([[[Vocabulary.START, *words, Vocabulary.END]]])
    reading = decoder(annotations, ids, torch.tensor([[len(words) + 1]]))
    log_probabilities = -F.cross_entropy(reading.logits, reading.targets, reduction="none")
    return log_probabilities.tolist(), reading.weights[0, 0, :-1].detach()


def score(decoder: Decoder, annotations: torch.Tensor, words: list[int]) -> list[float]:
    return reread(decoder, annotations, words)[0]


def test_greedy_takes_the_likeliest_word() -> None:
    decoder = make_decoder()
    annotations = torch.randn(3, 6, 8)
    for number, found in enumerate(search.greedy(decoder, annotations, maximum_length=10)):
        memory, state = decoder.start(annotations[number : number + 1])
        word = Vocabulary.START
        expected = []
        for step in range(10):
            log_probabilities, state, _ = decoder.step(torch.tensor([[word]]), state, memory)
            for forbidden in (Vocabulary.PAD, Vocabulary.START, Vocabulary.UNKNOWN):
                log_probabilities[..., forbidden] = -torch.inf
            if step == 0:
                log_probabilities[..., Vocabulary.END] = -torch.inf
            word = int(log_probabilities.argmax())
            if word == Vocabulary.END:
                break
            expected.append(word)
        assert found.words == expected


def test_a_batch_equals_one_by_one() -> None:
    decoder = make_decoder(end_bias=2.0)
    annotations = torch.randn(8, 6, 8)
    together = search.greedy(decoder, annotations)
    assert len({len(found.words) for found in together}) > 1, "captions of one length would prove little"
    for number, found in enumerate(together):
        alone = search.greedy(decoder, annotations[number : number + 1])[0]
        assert alone.words == found.words
        torch.testing.assert_close(alone.weights, found.weights)
        assert alone.log_probabilities == pytest.approx(found.log_probabilities, abs=1e-5)


def test_scores_and_maps_are_those_of_teacher_forcing() -> None:
    """Also that a map belongs to its own word, not to the one before or after."""
    decoder = make_decoder(end_bias=3.0)
    annotations = torch.randn(12, 6, 8)
    captions = search.greedy(decoder, annotations)
    assert max(len(found.words) for found in captions) > 3
    for number, found in enumerate(captions):
        if len(found.words) == 40:  # cut, so that its end was not said
            continue
        expected, maps = reread(decoder, annotations[number : number + 1], found.words)
        assert found.log_probabilities == pytest.approx(expected, abs=1e-4)
        torch.testing.assert_close(found.weights, maps)


def test_a_caption_that_never_ends_is_cut() -> None:
    found = search.greedy(make_decoder(end_bias=-100.0), torch.randn(2, 6, 8), maximum_length=5)
    assert [len(one.words) for one in found] == [5, 5]
    assert found[0].weights.shape == (5, 6)


def test_a_caption_is_never_empty_and_never_says_a_mark() -> None:
    for bias in (100.0, 0.0):
        found = search.greedy(make_decoder(end_bias=bias), torch.randn(20, 6, 8), maximum_length=6)
        assert all(one.words for one in found)
        assert not {word for one in found for word in one.words} & {0, 1, 2, 3}


@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.0])
def test_a_wide_beam_is_an_exhaustive_search(length_penalty: float) -> None:
    """Every caption of up to three of the eight words, scored one by one; a beam that holds them all finds the best."""
    decoder = make_decoder(end_bias=1.0)
    annotations = torch.randn(4, 6, 8)
    captions = [list(words) for length in (1, 2) for words in itertools.product(range(4, 12), repeat=length)]
    for number, found in enumerate(beam(decoder, annotations, 100, 3, length_penalty, n_best=5)):
        one = annotations[number : number + 1]
        # The beam may also cut a third word off from its end; captions that ended come first.
        scores = {
            tuple(words): sum(score(decoder, one, words)) / (len(words) + 1) ** length_penalty for words in captions
        }
        expected = sorted(scores, key=scores.__getitem__, reverse=True)[:5]
        assert [tuple(caption.words) for caption in found] == expected


def test_beam_scores_and_maps_are_those_of_teacher_forcing() -> None:
    """The maps follow their beam, whichever beam it went on from."""
    decoder = make_decoder(end_bias=2.0)
    annotations = torch.randn(6, 6, 8)
    lengths = set()
    for number, captions in enumerate(beam(decoder, annotations, 4, 12, n_best=4)):
        one = annotations[number : number + 1]
        for found in captions:
            if len(found.words) == 12:
                continue
            lengths.add(len(found.words))
            expected, maps = reread(decoder, one, found.words)
            assert found.log_probabilities == pytest.approx(expected, abs=1e-4)
            torch.testing.assert_close(found.weights, maps)
        totals = [sum(found.log_probabilities) for found in captions if len(found.words) < 12]
        assert totals == sorted(totals, reverse=True)
    assert len(lengths) > 2


def test_a_batch_of_beams_equals_one_by_one() -> None:
    decoder = make_decoder(end_bias=2.0)
    annotations = torch.randn(8, 6, 8)
    together = beam(decoder, annotations, 3, length_penalty=0.7, n_best=3)
    for number, captions in enumerate(together):
        (alone,) = beam(decoder, annotations[number : number + 1], 3, length_penalty=0.7, n_best=3)
        assert [found.words for found in alone] == [found.words for found in captions]


def test_a_wider_beam_finds_better_captions() -> None:
    decoder = make_decoder(end_bias=2.0)
    annotations = torch.randn(30, 6, 8)
    totals = []
    for size in (1, 3, 10):
        found = beam(decoder, annotations, size)
        totals.append(sum(sum(captions[0].log_probabilities) for captions in found))
    assert totals == sorted(totals)
    assert totals[0] < totals[2]


def test_stopping_early_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = make_decoder(end_bias=4.0)
    annotations = torch.randn(10, 6, 8)
    steps = []
    step = decoder.step
    monkeypatch.setattr(decoder, "step", lambda *arguments: steps.append(1) or step(*arguments))
    found = beam(decoder, annotations, 3, 40, 0.8, n_best=2)
    assert len(steps) < 40
    taken = len(steps)
    monkeypatch.setattr(search, "_over", lambda *_: [False] * 10)  # never stop early
    later = beam(decoder, annotations, 3, 40, 0.8, n_best=2)
    assert len(steps) == taken + 40
    assert [[one.words for one in captions] for captions in found] == [
        [one.words for one in captions] for captions in later
    ]


def test_beams_that_never_end_are_cut() -> None:
    for captions in beam(make_decoder(end_bias=-100.0), torch.randn(2, 6, 8), 3, 5, n_best=3):
        assert [len(found.words) for found in captions] == [5, 5, 5]
        assert len({tuple(found.words) for found in captions}) == 3


def test_beams_share_their_pictures_memory() -> None:
    decoder = make_decoder()
    seen = set()
    step = decoder.step

    def watch(words: torch.Tensor, state: State, memory: Memory, choose: None):
        seen.add((memory.annotations.data_ptr(), memory.keys.data_ptr(), memory.annotations.shape))
        return step(words, state, memory, choose)

    decoder.step = watch
    annotations = torch.randn(4, 6, 8)
    beam(decoder, annotations, 5)
    assert len(seen) == 1
    assert next(iter(seen))[2] == annotations.shape


def test_no_more_captions_than_beams() -> None:
    with pytest.raises(CaptioningError, match="n_best 4: take 1 to 3"):
        Search(beam=3)(make_decoder(), torch.randn(1, 6, 8), torch.Generator(), n_best=4)


class Counting(nn.Module):
    """A decoder that says 4, 5, end, and counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = 0

    def start(self, annotations: torch.Tensor) -> tuple[Memory, State]:
        self.starts += 1
        zero = torch.zeros(len(annotations), 1, 1)
        return Memory(annotations, annotations), State(zero, zero)

    def step(self, words: torch.Tensor, state: State, memory: Memory, choose: None) -> tuple[torch.Tensor, State, Look]:
        following = {Vocabulary.START: 4, 4: 5, 5: Vocabulary.END, Vocabulary.END: Vocabulary.END}
        chosen = torch.tensor([[following[int(word)] for word in row] for row in words])
        weights = torch.full((len(words), 1, 2), 0.5)
        look = Look(memory.annotations[:, :1], weights, weights.log(), torch.full((len(words), 1), -1))
        return F.one_hot(chosen, 6).float().log(), state, look


def test_the_picture_is_prepared_once_and_search_stops_at_the_end() -> None:
    decoder = Counting()
    found = search.greedy(decoder, torch.zeros(2, 2, 3), maximum_length=1000)
    assert decoder.starts == 1
    assert [one.words for one in found] == [[4, 5], [4, 5]]


def test_a_beam_of_one_is_greedy() -> None:
    decoder = make_decoder(end_bias=1.0)
    annotations = torch.randn(20, 6, 8)
    generator = torch.Generator()
    assert [found.words for (found,) in Search(beam=1, length_penalty=0.9)(decoder, annotations, generator)] == [
        found.words for found in search.greedy(decoder, annotations)
    ]


def test_a_caption_does_not_end_early() -> None:
    decoder = make_decoder(end_bias=6.0)
    annotations = torch.randn(5, 6, 8)
    assert min(len(found.words) for (found,) in beam(decoder, annotations, 3)) < 4
    for settings in ({"beam": 3}, {"sample": True}):
        found = Search(20, minimum_length=4, **settings)(decoder, annotations, torch.Generator().manual_seed(0))
        for number, (one,) in enumerate(found):
            assert 4 <= len(one.words) < 20, "so likely an end is taken as soon as it may be"
            expected = score(decoder, annotations[number : number + 1], one.words)
            assert one.log_probabilities == pytest.approx(expected, abs=1e-4)


def rows_of(words: list[int], length: int) -> list[tuple[int, ...]]:
    return [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("settings", [{"beam": 1}, {"beam": 4}, {"sample": True, "temperature": 0.3}])
def test_no_words_in_a_row_are_said_twice(length: int, settings: dict) -> None:
    decoder = make_decoder(end_bias=-3.0)
    annotations = torch.randn(10, 6, 8)
    generator = torch.Generator().manual_seed(0)
    repeated = 0
    for no_repeat in (0, length):
        found = Search(15, no_repeat=no_repeat, **settings)(decoder, annotations, generator)
        rows = [rows_of(one.words, length) for (one,) in found]
        twice = sum(len(set(own)) < len(own) for own in rows)
        repeated = repeated or twice
        assert no_repeat == 0 or twice == 0
    assert repeated, "without being kept from it, it does repeat itself"


def test_with_nothing_left_to_say_a_caption_ends() -> None:
    """There are eight words; none may be said twice, though an end is all but impossible and asked for later."""
    decoder = make_decoder(end_bias=-50.0)
    for settings in ({"beam": 2}, {"sample": True}):
        found = Search(40, minimum_length=20, no_repeat=1, **settings)(decoder, torch.randn(3, 6, 8), torch.Generator())
        assert [sorted(one.words) for (one,) in found] == [list(range(4, 12))] * 3


def test_groups_say_different_things() -> None:
    decoder = make_decoder(end_bias=1.0)
    annotations = torch.randn(12, 6, 8)
    firsts = []
    for diversity in (0.0, 50.0):
        how = Search(12, beam=3, groups=3, diversity=diversity)
        found = how(decoder, annotations, torch.Generator(), n_best=3)
        firsts.append([[one.words[0] for one in captions] for captions in found])
    assert all(len(set(words)) == 3 for words in firsts[1]), "a word that costs so much is said by one group alone"
    assert not all(len(set(words)) == 3 for words in firsts[0])


def test_the_first_group_is_a_beam_of_its_own_and_scores_stay_the_models() -> None:
    decoder = make_decoder(end_bias=2.0)
    annotations = torch.randn(6, 6, 8)
    alone = beam(decoder, annotations, 2, 12, n_best=2)
    grouped = beam(decoder, annotations, 6, 12, n_best=6, groups=3, diversity=1.0)
    for number, (own, captions) in enumerate(zip(alone, grouped, strict=True)):
        said = {tuple(one.words): one for one in captions}
        assert len(said) == len(captions)
        assert {tuple(one.words) for one in own} <= said.keys()
        for one in captions:
            if len(one.words) < 12:
                expected = score(decoder, annotations[number : number + 1], one.words)
                assert one.log_probabilities == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"minimum_length": 0}, "minimum_length 0: take 1 to 40"),
        ({"maximum_length": 3, "minimum_length": 4}, "minimum_length 4: take 1 to 3"),
        ({"beam": 0}, "beam 0"),
        ({"beam": 4, "groups": 3}, "groups 3: must divide the beam of 4"),
        ({"temperature": 0.0}, "temperature 0.0"),
        ({"nucleus": 0.0}, "nucleus 0.0"),
        ({"top_k": -1}, "top_k -1"),
        ({"no_repeat": -1}, "no_repeat -1"),
    ],
)
def test_settings_that_make_no_sense(settings: dict, message: str) -> None:
    with pytest.raises(CaptioningError, match=message):
        Search(**settings)
