"""The fast decoder against the equations of the paper, written out plainly, one caption and one word at a time."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from captioning.decoder import Decoder
from tests.test_decoder import HIDDEN, PLACES, fast_loss, make_batch, make_decoder

SCORES = ("additive", "dot", "general", "scaled_dot", "location")


def textbook_score(decoder: Decoder, name: str, places: Tensor, hidden: Tensor) -> Tensor:
    score = decoder.attention.score
    match name:
        case "additive":
            inner = [score.key.weight @ a + score.key.bias + score.query.weight @ hidden for a in places]
            return torch.stack([score.score.weight[0] @ torch.tanh(vector) for vector in inner])
        case "dot":
            return torch.stack([a @ hidden for a in places])
        case "general":
            return torch.stack([(score.key.weight @ a) @ hidden for a in places])
        case "scaled_dot":
            query = score.query.weight @ hidden + score.query.bias
            keys = [score.key.weight @ a + score.key.bias for a in places]
            return torch.stack([key @ query / len(key) ** 0.5 for key in keys])
        case "location":
            return score.query.weight @ hidden + score.query.bias
    raise AssertionError(name)


def textbook_loss(
    decoder: Decoder,
    settings: dict,
    annotations: Tensor,
    words: Tensor,
    lengths: Tensor,
    places: Tensor | None = None,
) -> Tensor:
    """−log p(y|a) + Σ_i (1 − Σ_t α_ti)², a mean over captions; with places (B, C, T), at one of them for each word."""
    total, captions = torch.zeros(()), 0
    for picture, caption in itertools.product(range(words.shape[0]), range(words.shape[1])):
        length = int(lengths[picture, caption])
        if not length:
            continue
        captions += 1
        a = annotations[picture]
        if settings.get("neighbours", "none") != "none":
            a = decoder.neighbours(a[None])[0]
        hidden = torch.tanh(decoder.start_hidden.weight @ a.mean(0) + decoder.start_hidden.bias)
        cell = torch.tanh(decoder.start_cell.weight @ a.mean(0) + decoder.start_cell.bias)
        looked = torch.zeros(PLACES)
        for step in range(length):
            embedded = decoder.embedding.weight[words[picture, caption, step]]
            gates = decoder.word_gates.weight @ embedded + decoder.word_gates.bias

            place = None if places is None else places[picture, caption, step]

            def look(hidden: Tensor, a: Tensor = a, place: Tensor | None = place) -> tuple[Tensor, Tensor]:
                scores = textbook_score(decoder, settings["score"], a, hidden)
                weights = F.softmax(scores / settings.get("temperature", 1.0), dim=0)
                context = sum(weight * vector for weight, vector in zip(weights, a, strict=True))  # a sum, not a mean
                if place is not None:
                    context = a[place]
                if decoder.gate is not None:
                    context = torch.sigmoid(decoder.gate.weight @ hidden + decoder.gate.bias) * context
                return context, weights

            def lstm(gates: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
                i, f, o, g = (gates + decoder.state_gates.weight @ hidden).split(HIDDEN)
                cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
                return torch.sigmoid(o) * torch.tanh(cell), cell

            if settings["wiring"] == "paper":
                context, weights = look(hidden)
                hidden, cell = lstm(gates + decoder.context_gates.weight @ context, hidden, cell)
                mixed = embedded + decoder.output_hidden.weight @ hidden + decoder.output_hidden.bias
                mixed = mixed + decoder.output_context.weight @ context
            else:
                hidden, cell = lstm(gates, hidden, cell)
                context, weights = look(hidden)
                mixed = decoder.combine.weight @ torch.cat((context, hidden)) + decoder.combine.bias
            logits = decoder.output.weight @ torch.tanh(mixed) + decoder.output.bias
            total = total - F.log_softmax(logits, dim=0)[words[picture, caption, step + 1]]
            looked = looked + weights
        total = total + ((1 - looked) ** 2).sum()
    return total / captions


@pytest.mark.parametrize("neighbours", ["none", "mean", "self_attention", "bidirectional_lstm"])
@pytest.mark.parametrize("gate", ["none", "scalar", "vector"])
@pytest.mark.parametrize("wiring", ["paper", "luong"])
@pytest.mark.parametrize("score", SCORES)
def test_fast_loop_equals_textbook(score: str, wiring: str, gate: str, neighbours: str) -> None:
    settings = {"score": score, "wiring": wiring, "gate": gate, "neighbours": neighbours}
    decoder = make_decoder(**settings)
    assert_equals_textbook(decoder, settings)


@pytest.mark.parametrize("wiring", ["paper", "luong"])
@pytest.mark.parametrize("score", SCORES)
def test_fast_loop_equals_textbook_at_single_places(score: str, wiring: str) -> None:
    settings = {"score": score, "wiring": wiring, "attention": "hard", "temperature": 1.5}
    places = torch.randint(PLACES, (3, 3, 7), generator=torch.Generator().manual_seed(2))
    assert_equals_textbook(make_decoder(**settings), settings, places)


def assert_equals_textbook(decoder: Decoder, settings: dict, places: Tensor | None = None) -> None:
    batch = make_batch([[3, 5, 2], [7, 1, 0], [4, 4, 4]])  # not in order of length, and one picture has fewer captions
    fast = fast_loss(decoder, *batch, places)
    textbook = textbook_loss(decoder, settings, *batch, places)
    results = {}
    for name, loss in (("fast", fast), ("textbook", textbook)):
        decoder.zero_grad()
        loss.backward()
        gradients = {
            key: parameter.grad.clone() for key, parameter in decoder.named_parameters() if parameter.grad is not None
        }
        results[name] = loss.item(), gradients

    assert results["fast"][0] == pytest.approx(results["textbook"][0], rel=1e-5)
    assert results["fast"][1].keys() == results["textbook"][1].keys() == dict(decoder.named_parameters()).keys()
    for key, gradient in results["textbook"][1].items():
        torch.testing.assert_close(results["fast"][1][key], gradient, atol=1e-4, rtol=1e-4, msg=key)
