import torch

from captioning.generation import GenerationConfig, mask_special_tokens
from captioning.generation.constraints import apply_constraints
from captioning.preprocessing.vocabulary import Vocabulary


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
