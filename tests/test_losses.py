import pytest
import torch

from captioning import losses


def test_likelihood_is_a_sum_over_words_and_a_mean_over_captions() -> None:
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    loss = losses.likelihood(logits, torch.tensor([0, 1, 1]), captions=2)
    assert loss.item() == pytest.approx(3 * 0.693147 / 2, rel=1e-5)


def test_doubly_stochastic_is_zero_when_each_place_is_looked_at_once() -> None:
    once = torch.eye(4)[None, None]  # (1, 1, T = 4, L = 4)
    assert losses.doubly_stochastic(once, captions=1).item() == 0
    only_one = torch.tensor([[1.0, 0, 0, 0]] * 4)[None, None]
    assert losses.doubly_stochastic(only_one, captions=1).item() == 3**2 + 3


def test_doubly_stochastic_passes_over_rows_without_caption() -> None:
    weights = torch.zeros(1, 3, 4, 4)
    weights[0, 0] = torch.tensor([1.0, 0, 0, 0])
    assert losses.doubly_stochastic(weights, captions=1).item() == 3**2 + 3


def test_neither_depends_on_the_batch_size() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(6, 5), torch.randint(5, (6,))
    weights = torch.rand(2, 1, 3, 4)
    torch.testing.assert_close(
        losses.likelihood(logits.repeat(3, 1), targets.repeat(3), 6), losses.likelihood(logits, targets, 2)
    )
    torch.testing.assert_close(
        losses.doubly_stochastic(weights.repeat(3, 1, 1, 1), 6), losses.doubly_stochastic(weights, 2)
    )
