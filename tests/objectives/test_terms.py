"""Penalties on the decoder output."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from captioning.datasets.batch import Batch, pad_captions
from captioning.datasets.view import View
from captioning.models.decoder import Decoder
from captioning.objectives import Distillation
from captioning.objectives.terms import doubly_stochastic_penalty
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError


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


NUM_INITIAL_TOKENS = 8
CAPTIONS = [[[1, 4, 5, 2], [1, 6, 2]], [[1, 7, 4, 5, 2], [1, 5, 2]]]


def make_model(num_initial_tokens: int = NUM_INITIAL_TOKENS) -> SimpleNamespace:
    """A decoder with two words, 8 and 9, that the initial model does not have."""
    torch.manual_seed(0)
    decoder = Decoder(10, 6, 4, embedding_size=8, hidden_size=8, attention_size=4, dropout=0.0)
    return SimpleNamespace(decoder=decoder, num_initial_tokens=num_initial_tokens)


def make_batch(captions: list[list[list[int]]]) -> Batch:
    token_ids, lengths = pad_captions(captions)
    return Batch(None, None, 0, token_ids, lengths, [], [View()] * len(captions))


def divergence(term: Distillation, model: SimpleNamespace, batch: Batch) -> Tensor:
    features = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(1))
    return term(model.decoder(features, batch.token_ids, batch.lengths), features, batch)


def test_distillation_is_zero_for_the_initial_model_and_positive_after_a_change() -> None:
    model, term, batch = make_model(), Distillation(), make_batch(CAPTIONS)
    term.setup(model)
    assert divergence(term, model, batch).item() == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        model.decoder.output.bias[5] += 2
    loss = divergence(term, model, batch)
    assert loss.item() > 0.1
    loss.backward()
    assert model.decoder.output.bias.grad is not None
    assert all(parameter.grad is None for parameter in term.teacher.parameters())


def test_distillation_ignores_the_probability_of_new_words() -> None:
    model, term = make_model(), Distillation()
    term.setup(model)
    with torch.no_grad():
        model.decoder.output.bias[NUM_INITIAL_TOKENS:] += 3
    assert divergence(term, model, make_batch(CAPTIONS)).item() == pytest.approx(0, abs=1e-6)


def test_the_teacher_reads_new_words_as_unknown() -> None:
    model, term = make_model(), Distillation()
    term.setup(model)
    with torch.no_grad():
        model.decoder.embedding.weight[8:] = model.decoder.embedding.weight[Vocabulary.UNK_ID]
    new_words = make_batch([[[1, 8, 5, 2]], [[1, 9, 4, 2]]])
    assert divergence(term, model, new_words).item() == pytest.approx(0, abs=1e-6)


def test_the_teacher_stays_in_evaluation_mode() -> None:
    model, term = make_model(), Distillation()
    term.setup(model)
    assert not term.train().teacher.training


def test_the_teacher_is_part_of_the_checkpoint() -> None:
    """A resumed run builds its model without ``init_from`` and then loads the state."""
    model, term, batch = make_model(), Distillation(), make_batch(CAPTIONS)
    term.setup(model)
    resumed_model, resumed = make_model(num_initial_tokens=0), Distillation()
    for parameter in resumed_model.decoder.parameters():
        torch.nn.init.normal_(parameter)
    resumed.setup(resumed_model)
    resumed.load_state_dict(term.state_dict())
    assert divergence(resumed, model, batch).item() == pytest.approx(0, abs=1e-6)


def test_distillation_requires_an_initial_model() -> None:
    model, term = make_model(num_initial_tokens=0), Distillation()
    term.setup(model)
    with pytest.raises(CaptioningError, match=r"set model\.init_from"):
        divergence(term, model, make_batch(CAPTIONS))
    with pytest.raises(CaptioningError, match=r"Distillation\.temperature must be > 0, got 0"):
        Distillation(temperature=0)
