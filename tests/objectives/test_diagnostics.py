"""Measurements of a training step."""

import pytest
import torch

from captioning.datasets.batch import Batch
from captioning.models.attention import attend_argmax
from captioning.objectives.diagnostics import ArgmaxProbe, gradient_norm
from tests.models.test_decoder import make_batch, make_decoder


def test_gradient_norm_is_that_of_one_loss_over_all_modules() -> None:
    first, second = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 1, bias=False)
    frozen = torch.nn.Linear(2, 1).requires_grad_(False)
    x = torch.tensor([1.0, 2.0])
    loss = 3 * first(x) + 4 * second(x) + frozen(x)
    assert gradient_norm(loss.sum(), [first, second, frozen]).item() == pytest.approx((25 * 5) ** 0.5)
    assert gradient_norm(loss.sum(), [second]).item() == pytest.approx((16 * 5) ** 0.5)
    assert gradient_norm(torch.tensor(1.0), [first]).item() == 0
    assert gradient_norm(second(x).sum(), [first]).item() == 0, "the loss does not depend on these parameters"
    assert first.weight.grad is None


def test_argmax_probe_measures_the_change_since_the_last_measurement() -> None:
    decoder = make_decoder(attention="hard", location_dropout=0.5, dropout=0.5).train()
    features, token_ids, lengths = make_batch([[4, 3], [3, 0]])
    probe = ArgmaxProbe(decoder, features, Batch(None, features, 0, token_ids, lengths, [], []))
    assert probe.locations.shape == (10,)
    assert probe.update(decoder).item() == 0, "the weights are the same, and nothing is dropped"
    with torch.no_grad():
        decoder.attention.score_fn.query_proj.weight.neg_()
        decoder.attention.score_fn.key_proj.weight.neg_()
    changed = probe.update(decoder).item()
    output = decoder.eval()(features, token_ids, lengths, attend_argmax)
    assert torch.equal(probe.locations, output.attention_trace.locations)
    assert 0 < changed <= 1
    assert probe.update(decoder).item() == 0
