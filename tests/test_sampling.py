"""Captions drawn by chance."""

import pytest
import torch

from captioning import search
from captioning.search import Search
from captioning.text import Vocabulary
from tests.test_search import make_decoder, reread


def test_samples_come_as_often_as_their_chances_say() -> None:
    """The first word of 4,000 captions of one picture, against the model's own chances."""
    decoder = make_decoder()
    annotations = torch.randn(1, 6, 8)
    memory, state = decoder.start(annotations)
    chances = decoder.step(torch.tensor([[Vocabulary.START]]), state, memory)[0][0, 0].exp().detach()
    chances[:4] = 0
    generator = torch.Generator().manual_seed(0)
    for temperature in (1.0, 0.5):
        how = Search(1, sample=True, temperature=temperature)
        (captions,) = how(decoder, annotations, generator, n_best=4000)
        counts = torch.bincount(torch.tensor([one.words[0] for one in captions]), minlength=12)
        expected = chances ** (1 / temperature)
        torch.testing.assert_close(counts / 4000, expected / expected.sum(), atol=0.025, rtol=0)


def test_samples_are_drawn_among_the_likeliest() -> None:
    scores = torch.tensor([[0.5, 0.05, 0.3, 0.15]]).log()
    likely = {
        (2, 1.0): [0, 2],
        (0, 0.5): [0],
        (0, 0.6): [0, 2],
        (3, 0.95): [0, 2, 3],
        (0, 1.0): [0, 1, 2, 3],
        (9, 0.01): [0],
    }
    for (top_k, nucleus), words in likely.items():
        assert search._narrow(scores, top_k, nucleus)[0].isfinite().nonzero().flatten().tolist() == words


def test_a_seed_draws_the_same_again() -> None:
    decoder = make_decoder()
    annotations = torch.randn(4, 6, 8)

    def draw(seed: int) -> list[list[list[int]]]:
        found = Search(10, sample=True)(decoder, annotations, torch.Generator().manual_seed(seed), n_best=3)
        return [[one.words for one in captions] for captions in found]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_samples_have_the_scores_and_maps_of_teacher_forcing() -> None:
    decoder = make_decoder(end_bias=2.0)
    annotations = torch.randn(4, 6, 8)
    how = Search(15, sample=True, temperature=2.0, top_k=5)
    for number, captions in enumerate(how(decoder, annotations, torch.Generator().manual_seed(0), n_best=4)):
        totals = [sum(one.log_probabilities) for one in captions]
        assert totals == sorted(totals, reverse=True)
        for one in captions:
            assert one.words
            assert not set(one.words) & {0, 1, 2, 3}
            if len(one.words) == 15:
                continue
            expected, maps = reread(decoder, annotations[number : number + 1], one.words)
            assert one.log_probabilities == pytest.approx(expected, abs=1e-4)
            torch.testing.assert_close(one.weights, maps)
