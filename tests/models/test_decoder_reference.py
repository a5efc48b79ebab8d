"""Comparison of the batched decoder with a direct implementation of the equations, one caption and token at a time."""

import itertools

import entmax
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from captioning.models.decoder import Decoder
from tests.models.test_decoder import (
    ARCHITECTURES,
    HIDDEN_SIZE,
    NUM_LOCATIONS,
    decoder_loss,
    make_batch,
    make_decoder,
)

SCORES = ("additive", "dot", "general", "scaled_dot", "location")


def reference_scores(decoder: Decoder, features: Tensor, hidden: Tensor) -> Tensor:
    """Scores (L,) of features (L, D) and hidden state (H,)."""
    score_fn = decoder.attention.score_fn
    match decoder.config["attention_score"]:
        case "additive":
            query = score_fn.query_proj.weight @ hidden
            energies = [score_fn.key_proj.weight @ a + score_fn.key_proj.bias + query for a in features]
            return torch.stack([score_fn.energy_proj.weight[0] @ torch.tanh(energy) for energy in energies])
        case "dot":
            return torch.stack([a @ hidden for a in features])
        case "general":
            return torch.stack([(score_fn.key_proj.weight @ a) @ hidden for a in features])
        case "scaled_dot":
            query = score_fn.query_proj.weight @ hidden + score_fn.query_proj.bias
            keys = [score_fn.key_proj.weight @ a + score_fn.key_proj.bias for a in features]
            return torch.stack([key @ query / len(key) ** 0.5 for key in keys])
        case "location":
            return score_fn.query_proj.weight @ hidden + score_fn.query_proj.bias
    raise AssertionError


def reference_attention(
    decoder: Decoder, features: Tensor, hidden: Tensor, location: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Context (D,) and weights (L,) of eqs 4-6 and 13; with a location, the context is that of eq. 9."""
    scores = reference_scores(decoder, features, hidden)
    if decoder.config["attention_activation"] == "softmax":
        weights = F.softmax(scores / decoder.config["attention_temperature"], dim=0)
    else:  # bisection instead of the exact algorithm
        weights = entmax.entmax_bisect(scores, {"sparsemax": 2.0, "entmax15": 1.5}[decoder.attention.activation])
    context = sum(weight * a for weight, a in zip(weights, features, strict=True))  # a sum, not a mean
    if location is not None:
        context = features[location]
    if decoder.context_gate is not None:
        context = torch.sigmoid(decoder.context_gate.weight @ hidden + decoder.context_gate.bias) * context
    return context, weights


def reference_lstm(decoder: Decoder, gates: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Eqs 1-3."""
    i, f, o, g = (gates + decoder.hidden_proj.weight @ hidden).split(HIDDEN_SIZE)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def reference_caption_loss(
    decoder: Decoder, features: Tensor, token_ids: Tensor, length: int, locations: Tensor | None
) -> Tensor:
    """−log p(y|a) + Σ_i (1 − Σ_t α_ti)² of one caption (T+1,) of an image (L, D) (eq. 14)."""
    hidden = torch.tanh(decoder.init_hidden.weight @ features.mean(0) + decoder.init_hidden.bias)
    cell = torch.tanh(decoder.init_cell.weight @ features.mean(0) + decoder.init_cell.bias)
    total, weight_sum = torch.zeros(()), torch.zeros(NUM_LOCATIONS)
    for step in range(length):
        embedding = decoder.embedding.weight[token_ids[step]]
        gates = decoder.input_proj.weight @ embedding + decoder.input_proj.bias
        location = None if locations is None else locations[step]
        if decoder.architecture == "show_attend_tell":
            context, weights = reference_attention(decoder, features, hidden, location)
            hidden, cell = reference_lstm(decoder, gates + decoder.context_proj.weight @ context, hidden, cell)
            combined = embedding + decoder.output_hidden.weight @ hidden + decoder.output_hidden.bias
            combined = combined + decoder.output_context.weight @ context
        else:
            hidden, cell = reference_lstm(decoder, gates + decoder.global_proj.weight @ features.mean(0), hidden, cell)
            context, weights = reference_attention(decoder, features, hidden, location)
            combined = decoder.attentional_hidden.weight @ torch.cat((context, hidden))
            combined = combined + decoder.attentional_hidden.bias
        logits = decoder.output.weight @ torch.tanh(combined) + decoder.output.bias
        total = total - F.log_softmax(logits, dim=0)[token_ids[step + 1]]
        weight_sum = weight_sum + weights
    return total + ((1 - weight_sum) ** 2).sum()


def reference_loss(
    decoder: Decoder, features: Tensor, token_ids: Tensor, lengths: Tensor, locations: Tensor | None = None
) -> Tensor:
    """Mean loss over captions; with locations (B, C, T), hard attention attends to them."""
    losses = []
    for image, caption in itertools.product(range(token_ids.shape[0]), range(token_ids.shape[1])):
        length = int(lengths[image, caption])
        if not length:
            continue
        mixed = decoder.feature_mixer(features[image][None])[0]
        caption_locations = None if locations is None else locations[image, caption]
        losses.append(reference_caption_loss(decoder, mixed, token_ids[image, caption], length, caption_locations))
    return torch.stack(losses).sum() / len(losses)


@pytest.mark.parametrize("feature_mixer", ["none", "mean", "self_attention", "bilstm"])
@pytest.mark.parametrize("context_gate", ["none", "scalar", "vector"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("attention_score", SCORES)
def test_soft_decoder_equals_reference(
    attention_score: str, architecture: str, context_gate: str, feature_mixer: str
) -> None:
    decoder = make_decoder(
        attention_score=attention_score,
        architecture=architecture,
        context_gate=context_gate,
        feature_mixer=feature_mixer,
    )
    assert_equals_reference(decoder)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("activation", ["sparsemax", "entmax15"])
def test_sparse_decoder_equals_reference(activation: str, architecture: str) -> None:
    """Including the gradient of the doubly stochastic term."""
    decoder = make_decoder(attention_activation=activation, architecture=architecture)
    output = decoder(*make_batch([[3, 5, 2], [7, 1, 0]]))
    assert (output.attention_weights[output.token_mask] == 0).any()
    assert_equals_reference(decoder)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("attention_score", SCORES)
def test_hard_decoder_equals_reference(attention_score: str, architecture: str) -> None:
    decoder = make_decoder(
        attention_score=attention_score, architecture=architecture, attention="hard", attention_temperature=1.5
    )
    locations = torch.randint(NUM_LOCATIONS, (3, 3, 7), generator=torch.Generator().manual_seed(2))
    assert_equals_reference(decoder, locations)


def assert_equals_reference(decoder: Decoder, locations: Tensor | None = None) -> None:
    batch = make_batch([[3, 5, 2], [7, 1, 0], [4, 4, 4]])  # not sorted by length; one image has fewer captions
    results = {}
    for name, loss_fn in (("decoder", decoder_loss), ("reference", reference_loss)):
        loss = loss_fn(decoder, *batch, locations)
        decoder.zero_grad()
        loss.backward()
        gradients = {
            key: parameter.grad.clone() for key, parameter in decoder.named_parameters() if parameter.grad is not None
        }
        results[name] = loss.item(), gradients

    assert results["decoder"][0] == pytest.approx(results["reference"][0], rel=1e-5)
    assert results["decoder"][1].keys() == results["reference"][1].keys() == dict(decoder.named_parameters()).keys()
    for key, gradient in results["reference"][1].items():
        torch.testing.assert_close(results["decoder"][1][key], gradient, atol=1e-4, rtol=1e-4, msg=key)
