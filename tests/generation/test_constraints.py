import pytest
import torch

from captioning.generation import GenerationConfig, generate, mask_special_tokens
from captioning.generation.constraints import apply_constraints
from captioning.preprocessing.vocabulary import Vocabulary
from tests.generation.helpers import make_decoder


def allowed_ids(scores: torch.Tensor) -> list[int]:
    return scores.isfinite().nonzero().flatten().tolist()


def test_special_tokens_are_masked() -> None:
    scores = torch.zeros(2, 7)
    assert allowed_ids(mask_special_tokens(scores, forbid_eos=False)[0]) == [Vocabulary.EOS_ID, 4, 5, 6]
    assert allowed_ids(mask_special_tokens(scores, forbid_eos=True)[1]) == [4, 5, 6]
    assert scores.isfinite().all(), "the argument is not modified"


def test_eos_is_forbidden_before_min_length() -> None:
    log_probs = torch.zeros(1, 1, 6)
    config = GenerationConfig(min_length=2)
    for num_generated, expected in ((1, [4, 5]), (2, [Vocabulary.EOS_ID, 4, 5])):
        generated = torch.full((1, 1, num_generated), 4)
        assert allowed_ids(apply_constraints(config, log_probs, generated)[0, 0]) == expected


def test_repeated_ngrams_are_forbidden() -> None:
    log_probs = torch.zeros(1, 2, 8)
    generated = torch.tensor([[[4, 5, 6, 4], [5, 4, 7, 5]]])
    for n, expected in ((1, ([2, 7], [2, 6])), (2, ([2, 4, 6, 7], [2, 5, 6, 7])), (3, ([2, 4, 5, 6, 7],) * 2)):
        allowed = apply_constraints(GenerationConfig(no_repeat_ngram_size=n), log_probs, generated)
        assert tuple(allowed_ids(row) for row in allowed[0]) == expected


def test_a_caption_without_allowed_tokens_ends() -> None:
    """The end token keeps its log-probability, although min_length forbids it."""
    log_probs = torch.arange(-5.0, 1.0).view(1, 1, 6)
    config = GenerationConfig(min_length=10, no_repeat_ngram_size=1)
    allowed = apply_constraints(config, log_probs, torch.tensor([[[4, 5]]]))
    assert allowed_ids(allowed[0, 0]) == [Vocabulary.EOS_ID]
    assert allowed[0, 0, Vocabulary.EOS_ID] == log_probs[0, 0, Vocabulary.EOS_ID]


def ngrams_of(token_ids: list[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(token_ids[start : start + n]) for start in range(len(token_ids) - n + 1)]


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("settings", [{"num_beams": 1}, {"num_beams": 4}, {"do_sample": True, "temperature": 0.3}])
def test_no_ngram_is_repeated(n: int, settings: dict) -> None:
    decoder = make_decoder(eos_bias=-3.0)
    features = torch.randn(10, 6, 8)
    generator = torch.Generator().manual_seed(0)
    num_repeating = {}
    for no_repeat_ngram_size in (0, n):
        config = GenerationConfig(15, no_repeat_ngram_size=no_repeat_ngram_size, **settings)
        ngrams = [
            ngrams_of(hypothesis.token_ids, n) for (hypothesis,) in generate(decoder, features, config, generator)
        ]
        num_repeating[no_repeat_ngram_size] = sum(len(set(found)) < len(found) for found in ngrams)
    assert num_repeating[n] == 0
    assert num_repeating[0], "the test requires repetitions without the constraint"


def test_a_caption_ends_if_all_words_are_used() -> None:
    """None of the eight words may repeat, although the end token is improbable and forbidden before min_length."""
    decoder = make_decoder(eos_bias=-50.0)
    for settings in ({"num_beams": 2}, {"do_sample": True}):
        config = GenerationConfig(40, min_length=20, no_repeat_ngram_size=1, **settings)
        results = generate(decoder, torch.randn(3, 6, 8), config, torch.Generator())
        assert [sorted(hypothesis.token_ids) for (hypothesis,) in results] == [list(range(4, 12))] * 3
