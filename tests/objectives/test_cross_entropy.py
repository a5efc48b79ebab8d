"""The negative log-likelihood of captions."""

import pytest
import torch

from captioning.objectives.base import caption_nll


def test_nll_is_a_sum_over_tokens_and_a_mean_over_captions() -> None:
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    loss = caption_nll(logits, torch.tensor([0, 1, 1]), num_captions=2)
    assert loss.item() == pytest.approx(3 * 0.693147 / 2, rel=1e-5)


def test_label_smoothing_spreads_probability_mass_over_the_vocabulary() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0]])
    log_probs = logits.log_softmax(-1)[0]
    expected = -(0.9 * log_probs[0] + 0.1 * log_probs.mean())
    torch.testing.assert_close(caption_nll(logits, torch.tensor([0]), 1, label_smoothing=0.1), expected)


def test_nll_does_not_depend_on_the_batch_size() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(6, 5), torch.randint(5, (6,))
    torch.testing.assert_close(caption_nll(logits.repeat(3, 1), targets.repeat(3), 6), caption_nll(logits, targets, 2))
