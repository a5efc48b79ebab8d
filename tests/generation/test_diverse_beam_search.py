import pytest
import torch

from captioning.generation import GenerationConfig, generate
from tests.generation.helpers import make_decoder, run_beam_search, teacher_forced_log_probs


def test_the_diversity_penalty_separates_the_groups() -> None:
    decoder = make_decoder(eos_bias=1.0)
    features = torch.randn(12, 6, 8)
    first_words = {}
    for penalty in (0.0, 50.0):
        config = GenerationConfig(12, num_beams=3, num_beam_groups=3, diversity_penalty=penalty)
        results = generate(decoder, features, config, torch.Generator(), num_return_sequences=3)
        first_words[penalty] = [[hypothesis.token_ids[0] for hypothesis in hypotheses] for hypotheses in results]
    assert all(len(set(words)) == 3 for words in first_words[50.0]), "with a large penalty, groups share no first word"
    assert not all(len(set(words)) == 3 for words in first_words[0.0])


def test_the_first_group_equals_plain_beam_search_and_log_probs_are_unpenalized() -> None:
    decoder = make_decoder(eos_bias=2.0)
    features = torch.randn(6, 6, 8)
    plain = run_beam_search(decoder, features, 2, 12, num_return_sequences=2)
    diverse = run_beam_search(
        decoder, features, 6, 12, num_return_sequences=6, num_beam_groups=3, diversity_penalty=1.0
    )
    for index, (plain_hypotheses, hypotheses) in enumerate(zip(plain, diverse, strict=True)):
        distinct = {tuple(hypothesis.token_ids) for hypothesis in hypotheses}
        assert len(distinct) == len(hypotheses)
        assert {tuple(hypothesis.token_ids) for hypothesis in plain_hypotheses} <= distinct
        for hypothesis in hypotheses:
            if len(hypothesis.token_ids) < 12:
                expected = teacher_forced_log_probs(decoder, features[index : index + 1], hypothesis.token_ids)
                assert hypothesis.log_probs == pytest.approx(expected, abs=1e-4)
