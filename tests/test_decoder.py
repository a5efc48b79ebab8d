"""What the decoder must do and must not; tests/test_textbook.py has its equations."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from captioning import attention, losses
from captioning.annotations import DropoutOfPictures
from captioning.attention import Choose, Look, look_at
from captioning.decoder import Decoder, Memory, _running
from captioning.errors import CaptioningError
from captioning.text import Vocabulary

PLACES, WIDTH, HIDDEN, WORDS = 6, 8, 8, 11


def make_decoder(**settings) -> Decoder:
    torch.manual_seed(0)
    defaults = {"embedding_size": 5, "hidden_size": HIDDEN, "attention_size": 4, "dropout": 0.0}
    decoder = Decoder(WORDS, WIDTH, PLACES, **{**defaults, **settings})
    with torch.no_grad():  # larger than they begin, so that no part of the sum is too small to be tested
        for parameter in decoder.parameters():
            parameter.normal_(std=0.5)
    return decoder


def make_batch(lengths: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    pictures, captions, longest = len(lengths), len(lengths[0]), max(map(max, lengths))
    annotations = torch.randn(pictures, PLACES, WIDTH, generator=generator)
    words = torch.full((pictures, captions, longest + 1), Vocabulary.PAD)
    for picture, caption in itertools.product(range(pictures), range(captions)):
        length = lengths[picture][caption]
        if length:
            inner = torch.randint(4, WORDS, (length - 1,), generator=generator)
            ids = [Vocabulary.START, *inner.tolist(), Vocabulary.END]
            words[picture, caption, : len(ids)] = torch.tensor(ids)
    return annotations, words, torch.tensor(lengths)


def fast_loss(
    decoder: Decoder, annotations: Tensor, words: Tensor, lengths: Tensor, places: Tensor | None = None
) -> Tensor:
    reading = decoder(annotations, words, lengths, None if places is None else forced(places))
    captions = int((lengths > 0).sum())
    likelihood = losses.likelihood(reading.logits, reading.targets, captions)
    return likelihood + losses.doubly_stochastic(reading.weights, captions)


def forced(places: Tensor) -> Choose:
    """Looks at the places (B, C, T), step by step."""
    steps = iter(places.unbind(-1))

    def choose(scores: Tensor, annotations: Tensor) -> Look:
        return look_at(next(steps)[: scores.shape[0], : scores.shape[1]], scores, annotations)

    return choose


@pytest.mark.parametrize("wiring", ["paper", "luong"])
def test_steps_equal_teacher_forcing(wiring: str) -> None:
    decoder = make_decoder(wiring=wiring).eval()
    annotations, words, lengths = make_batch([[5], [5]])
    reading = decoder(annotations, words, lengths)
    memory, state = decoder.start(annotations)
    for step in range(5):
        log_probabilities, state, look = decoder.step(words[..., step], state, memory)
        expected = reading.logits.unflatten(0, (2, 1, 5))[:, :, step].log_softmax(-1)
        torch.testing.assert_close(log_probabilities, expected)
        torch.testing.assert_close(look.weights, reading.weights[:, :, step])


@pytest.mark.parametrize("wiring", ["paper", "luong"])
def test_hard_steps_equal_teacher_forcing(wiring: str) -> None:
    decoder = make_decoder(wiring=wiring, attention="hard").eval()
    annotations, words, lengths = make_batch([[5], [5]])
    reading = decoder(annotations, words, lengths)  # by argmax
    memory, state = decoder.start(annotations)
    for step in range(5):
        log_probabilities, state, look = decoder.step(words[..., step], state, memory)
        torch.testing.assert_close(
            log_probabilities, reading.logits.unflatten(0, (2, 1, 5))[:, :, step].log_softmax(-1)
        )
        torch.testing.assert_close(look.scores.softmax(-1), reading.weights[:, :, step])
        assert torch.equal(look.places.flatten(), reading.looks.places.unflatten(0, (2, 5))[:, step])


@pytest.mark.parametrize("neighbours", ["none", "mean", "self_attention"])
@pytest.mark.parametrize("gate", ["none", "scalar", "vector"])
@pytest.mark.parametrize("wiring", ["paper", "luong"])
def test_elsewhere_is_what_the_word_would_have_been(wiring: str, gate: str, neighbours: str) -> None:
    """The words before stay as they were looked up; only the word itself is looked up at another place."""
    decoder = make_decoder(wiring=wiring, gate=gate, neighbours=neighbours, attention="hard").eval()
    annotations, words, lengths = make_batch([[4, 3], [2, 4]])
    places = torch.randint(PLACES, (2, 2, 4), generator=torch.Generator().manual_seed(3))
    reading = decoder(annotations, words, lengths, forced(places))
    others = torch.randint(PLACES, (len(reading.targets), 3), generator=torch.Generator().manual_seed(4))
    found = decoder.elsewhere(reading.looks, others)
    assert found.shape == (4 + 3 + 2 + 4, 3, WORDS)
    for row, (picture, caption, step) in enumerate(reading.looks.where.tolist()):
        for number, other in enumerate(others[row]):
            changed = places.clone()
            changed[picture, caption, step] = other
            again = decoder(annotations, words, lengths, forced(changed))
            torch.testing.assert_close(found[row, number], again.logits[row])


@pytest.mark.parametrize("wiring", ["paper", "luong"])
def test_hard_attention_is_not_a_soft_one_in_disguise(wiring: str) -> None:
    """By argmax a change to a place that is not looked at changes no word's score; a soft look feels it."""
    decoder = make_decoder(wiring=wiring, attention="hard").eval()
    annotations, words, _ = make_batch([[5]])
    _, start = decoder.start(annotations)  # made of the mean of all places, so it is held

    def read(annotations: Tensor, choose: Choose = attention.argmax) -> tuple[list[Tensor], list[int]]:
        memory = Memory(annotations, decoder.attention.score.keys(annotations))
        state, said, looked = start, [], []
        for step in range(5):
            log_probabilities, state, look = decoder.step(words[..., step], state, memory, choose)
            said.append(log_probabilities)
            looked.append(int(look.weights.argmax()))
        return said, looked

    said, looked = read(annotations)
    unseen = set(range(PLACES)) - set(looked)
    assert unseen
    changes = 0
    for place in unseen:
        for scale in (0.01, 0.1, -0.3):
            changed = annotations.clone()
            changed[:, place] += scale * torch.randn(WIDTH, generator=torch.Generator().manual_seed(place))
            again, looked_again = read(changed)
            if looked_again != looked:  # so large a change that the place is looked at now
                continue
            changes += 1
            assert all(torch.equal(one, other) for one, other in zip(said, again, strict=True))
            soft = zip(read(annotations, attention.expect)[0], read(changed, attention.expect)[0], strict=True)
            assert not all(torch.equal(one, other) for one, other in soft), "the same change must reach a soft look"
    assert changes >= len(unseen)


def test_squashed_annotations_are_what_is_read() -> None:
    decoder = make_decoder(squash=5, attention_size=4).eval()
    annotations, words, lengths = make_batch([[4, 2], [3, 3]])
    sizes = ("vocabulary_size", "annotation_size", "places")
    own = {name: value for name, value in decoder.settings.items() if name not in sizes}
    narrow = Decoder(WORDS, 5, PLACES, **{**own, "squash": 0}).eval()
    narrow.load_state_dict({key: value for key, value in decoder.state_dict().items() if not key.startswith("squash")})
    squashed = decoder.squash[1](annotations @ decoder.squash[0].weight.T + decoder.squash[0].bias)
    torch.testing.assert_close(decoder(annotations, words, lengths), narrow(squashed, words, lengths))


def test_places_are_left_out_in_training_only() -> None:
    """Half of them, others for each picture and each time; what is kept is read as it stands."""
    decoder = make_decoder(place_dropout=0.5)
    annotations = make_batch([[4, 2], [3, 3]])[0]
    memory, _ = decoder.start(annotations)
    assert memory.annotations.shape == (2, PLACES // 2, WIDTH)
    kept = [
        [(annotations[picture] == row).all(dim=-1).nonzero().item() for row in rows]
        for picture, rows in enumerate(memory.annotations)
    ]
    assert kept[0] != kept[1]
    assert all(places == sorted(set(places)) for places in kept)
    assert not torch.equal(decoder.start(annotations)[0].annotations, memory.annotations)
    assert torch.equal(decoder.eval().start(annotations)[0].annotations, annotations)


def test_places_known_by_their_number_cannot_be_left_out() -> None:
    with pytest.raises(CaptioningError, match=r"location.*place_dropout 0"):
        make_decoder(score="location", place_dropout=0.5)
    with pytest.raises(CaptioningError, match=r"place_dropout 1\.0"):
        make_decoder(place_dropout=1.0)


def test_it_begins_by_saying_frequent_words() -> None:
    """By Zipf's law, before it has seen anything: the first word twice as often as the second."""
    decoder = Decoder(WORDS, WIDTH, PLACES)
    first, second, third = decoder.output.bias[len(Vocabulary.MARKS) :][:3].exp().tolist()
    assert (first / second, first / third) == pytest.approx((2, 3))


def test_tied_output_takes_the_embeddings() -> None:
    decoder = make_decoder(tied=True).eval()
    assert "output.weight" not in decoder.state_dict()
    untied = make_decoder().eval()
    untied.load_state_dict({**decoder.state_dict(), "output.weight": decoder.embedding.weight})
    batch = make_batch([[4, 2], [3, 3]])
    torch.testing.assert_close(decoder(*batch), untied(*batch))
    assert make_decoder(tied=True, wiring="luong", embedding_size=HIDDEN).tied
    with pytest.raises(CaptioningError, match="'tied' in wiring 'luong' needs embedding_size 5 equal to hidden_size 8"):
        make_decoder(tied=True, wiring="luong")


def test_word_dropout_hides_words_before_but_not_the_targets_and_in_training_only() -> None:
    decoder = make_decoder(word_dropout=1.0)
    annotations, words, lengths = make_batch([[4, 2], [3, 3]])
    hidden = torch.where(words == Vocabulary.PAD, words, torch.full_like(words, Vocabulary.UNKNOWN))
    reading = decoder(annotations, words, lengths)
    assert torch.equal(reading.targets, make_decoder()(annotations, words, lengths).targets)
    torch.testing.assert_close(reading.logits, decoder.eval()(annotations, hidden, lengths).logits)
    torch.testing.assert_close(decoder(annotations, words, lengths), make_decoder().eval()(annotations, words, lengths))


def test_padding_changes_nothing() -> None:
    decoder = make_decoder()
    annotations, words, lengths = make_batch([[3, 2]])
    padded = F.pad(words, (0, 4), value=Vocabulary.PAD)
    more_captions = F.pad(padded, (0, 0, 0, 1), value=Vocabulary.PAD), F.pad(lengths, (0, 1))
    plain = fast_loss(decoder, annotations, words, lengths)
    torch.testing.assert_close(fast_loss(decoder, annotations, padded, lengths), plain)
    torch.testing.assert_close(fast_loss(decoder, annotations, *more_captions), plain)


def test_keys_and_vocabulary_once_per_batch() -> None:
    """Neither the keys nor the vocabulary's product may be computed again at each step or for each caption."""
    decoder = make_decoder(score="additive")
    calls: dict[str, list[torch.Size]] = {"keys": [], "output": [], "word_gates": []}
    for name, layer in (
        ("keys", decoder.attention.score.key),
        ("output", decoder.output),
        ("word_gates", decoder.word_gates),
    ):
        layer.register_forward_hook(lambda _, inputs, __, name=name: calls[name].append(inputs[0].shape))
    annotations, words, lengths = make_batch([[3, 5], [6, 2]])
    decoder(annotations, words, lengths)
    assert calls == {
        "keys": [annotations.shape],
        "output": [torch.Size((3 + 5 + 6 + 2, 5))],  # real words only
        "word_gates": [torch.Size((2, 2, 6, 5))],
    }


def test_map_depends_on_the_word() -> None:
    """A score that adds two separate tanh's gives every word the same map."""
    decoder = make_decoder(score="additive").eval()
    annotations, words, lengths = make_batch([[6]])
    maps = decoder(annotations, words, lengths).weights[0, 0]
    assert all((one - other).abs().max() > 1e-3 for one, other in itertools.pairwise(maps))


def test_weights_sum_to_one_where_words_are() -> None:
    decoder = make_decoder()
    annotations, words, lengths = make_batch([[2, 4], [3, 1]])
    sums = decoder(annotations, words, lengths).weights.sum(-1)
    expected = (torch.arange(4) < lengths[..., None]).float()
    torch.testing.assert_close(sums, expected)


def test_running_block_shrinks() -> None:
    assert _running(torch.tensor([[4, 2], [1, 1]])) == [(2, 2), (1, 2), (1, 1), (1, 1)]


def test_only_what_exists_can_be_chosen() -> None:
    with pytest.raises(CaptioningError, match="'dot' needs hidden_size 4 equal to the encoder's width 8"):
        Decoder(WORDS, WIDTH, PLACES, hidden_size=4, score="dot")
    with pytest.raises(CaptioningError, match="'picture' is of squashed annotations"):
        Decoder(WORDS, WIDTH, PLACES, dropout_by="picture")
    assert any(
        isinstance(module, DropoutOfPictures) for module in make_decoder(squash=4, dropout_by="picture").modules()
    )
    names = ("wiring", "gate", "score", "neighbours", "attention", "dropout_by")
    for setting in ({name: "x"} for name in names):
        with pytest.raises(CaptioningError, match=r"unknown .* 'x'; choose"):
            Decoder(WORDS, WIDTH, PLACES, hidden_size=WIDTH, **setting)
