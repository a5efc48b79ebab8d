import pytest
import torch

from captioning.generation import GenerationConfig, generate
from captioning.generation.sampling import _draw, _filter_top_k_top_p
from captioning.preprocessing.vocabulary import Vocabulary
from tests.generation.helpers import make_decoder, teacher_force


def test_sample_frequencies_match_the_probabilities() -> None:
    """The first word of 4,000 captions of one image, compared with the probabilities of the model."""
    decoder = make_decoder()
    features = torch.randn(1, 6, 8)
    memory, state = decoder.init_state(features)
    probs = decoder.step(torch.tensor([[Vocabulary.BOS_ID]]), state, memory)[0][0, 0].exp().detach()
    probs[:4] = 0
    generator = torch.Generator().manual_seed(0)
    for temperature in (1.0, 0.5):
        config = GenerationConfig(1, do_sample=True, temperature=temperature)
        (hypotheses,) = generate(decoder, features, config, generator, num_return_sequences=4000)
        counts = torch.bincount(torch.tensor([hypothesis.token_ids[0] for hypothesis in hypotheses]), minlength=12)
        expected = probs ** (1 / temperature)
        torch.testing.assert_close(counts / 4000, expected / expected.sum(), atol=0.025, rtol=0)


def test_impossible_tokens_are_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    probs = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0]).expand(1000, 5)
    drawn = _draw(probs, torch.Generator().manual_seed(0))
    assert set(drawn.tolist()) == {1, 3}
    for draw, expected in ((0.0, 1), (1 - 2**-24, 3), (1.0, 3)):  # 1: a product that rounds up to the total
        monkeypatch.setattr(torch, "rand", lambda shape, draw=draw, **_: torch.full(shape, draw))
        assert set(_draw(probs, torch.Generator()).tolist()) == {expected}


def test_top_k_and_top_p_keep_the_most_probable_tokens() -> None:
    scores = torch.tensor([[0.5, 0.05, 0.3, 0.15]]).log()
    kept_ids = {
        (2, 1.0): [0, 2],
        (0, 0.5): [0],
        (0, 0.6): [0, 2],
        (3, 0.95): [0, 2, 3],
        (0, 1.0): [0, 1, 2, 3],
        (9, 0.01): [0],
    }
    for (top_k, top_p), expected in kept_ids.items():
        assert _filter_top_k_top_p(scores, top_k, top_p)[0].isfinite().nonzero().flatten().tolist() == expected


def test_the_seed_determines_the_samples() -> None:
    decoder = make_decoder()
    features = torch.randn(4, 6, 8)

    def sample_ids(seed: int) -> list[list[list[int]]]:
        generator = torch.Generator().manual_seed(seed)
        results = generate(decoder, features, GenerationConfig(10, do_sample=True), generator, num_return_sequences=3)
        return [[hypothesis.token_ids for hypothesis in hypotheses] for hypotheses in results]

    assert sample_ids(1) == sample_ids(1)
    assert sample_ids(1) != sample_ids(2)


def test_log_probs_and_attention_of_samples_equal_teacher_forcing() -> None:
    decoder = make_decoder(eos_bias=2.0)
    features = torch.randn(4, 6, 8)
    config = GenerationConfig(15, do_sample=True, temperature=2.0, top_k=5)
    results = generate(decoder, features, config, torch.Generator().manual_seed(0), num_return_sequences=4)
    for index, hypotheses in enumerate(results):
        totals = [sum(hypothesis.log_probs) for hypothesis in hypotheses]
        assert totals == sorted(totals, reverse=True)
        for hypothesis in hypotheses:
            assert hypothesis.token_ids
            assert not set(hypothesis.token_ids) & {0, 1, 2, 3}
            assert hypothesis.is_finished == (len(hypothesis.token_ids) < 15)
            if not hypothesis.is_finished:
                continue
            expected, weights = teacher_force(decoder, features[index : index + 1], hypothesis.token_ids)
            assert hypothesis.log_probs == pytest.approx(expected, abs=1e-4)
            torch.testing.assert_close(hypothesis.attention_weights, weights)
