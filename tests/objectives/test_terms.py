"""Penalties on the decoder output."""

import torch

from captioning.objectives.terms import doubly_stochastic_penalty


def test_doubly_stochastic_penalty_is_zero_if_each_location_is_attended_once() -> None:
    once = torch.eye(4)[None, None]  # (1, 1, T = 4, L = 4)
    assert doubly_stochastic_penalty(once, num_captions=1).item() == 0
    one_location = torch.tensor([[1.0, 0, 0, 0]] * 4)[None, None]
    assert doubly_stochastic_penalty(one_location, num_captions=1).item() == 3**2 + 3


def test_doubly_stochastic_penalty_skips_rows_without_caption() -> None:
    weights = torch.zeros(1, 3, 4, 4)
    weights[0, 0] = torch.tensor([1.0, 0, 0, 0])
    assert doubly_stochastic_penalty(weights, num_captions=1).item() == 3**2 + 3


def test_doubly_stochastic_penalty_does_not_depend_on_the_batch_size() -> None:
    weights = torch.rand(2, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    repeated = doubly_stochastic_penalty(weights.repeat(3, 1, 1, 1), 6)
    torch.testing.assert_close(repeated, doubly_stochastic_penalty(weights, 2))
