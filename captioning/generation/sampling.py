"""Ancestral sampling of captions with temperature, top-k and top-p (nucleus) filtering."""

import torch
from torch import Tensor

from captioning.generation.config import GenerationConfig
from captioning.generation.constraints import apply_constraints
from captioning.generation.hypothesis import Hypothesis
from captioning.generation.step_decoder import StepDecoder
from captioning.models.attention import AttentionFn
from captioning.preprocessing.vocabulary import Vocabulary


@torch.no_grad()
def sample(
    config: GenerationConfig,
    decoder: StepDecoder,
    features: Tensor,
    generator: torch.Generator,
    num_return_sequences: int = 1,
    attention_fn: AttentionFn | None = None,
) -> list[list[Hypothesis]]:
    """Sample captions of each image, sorted by descending log-probability.

    The log-probabilities are those of the model, without temperature and filtering.

    Args:
        config: reads the length limits, ``no_repeat_ngram_size``, ``temperature``, ``top_k`` and ``top_p``.
        decoder: in evaluation mode.
        features: (B, L, D).
        generator: random generator on the device of the features.
        num_return_sequences: N, number of captions per image.
        attention_fn: overrides the attention function of the decoder.
    """
    memory, state = decoder.init_state(features)
    state = state._make(tensor.expand(-1, num_return_sequences, -1) for tensor in state)
    token_ids = torch.full((len(features), num_return_sequences), Vocabulary.BOS_ID, device=features.device)
    generated = token_ids.new_empty(*token_ids.shape, 0)
    finished = torch.zeros_like(token_ids, dtype=torch.bool)
    token_log_probs, attention_weights, locations, context_gates = [], [], [], []
    while generated.shape[-1] < config.max_length and not finished.all():
        log_probs, state, attention = decoder.step(token_ids, state, memory, attention_fn)  # (B, N, V)
        scores = apply_constraints(config, log_probs, generated) / config.temperature
        probs = _filter_top_k_top_p(scores, config.top_k, config.top_p).softmax(-1)
        token_ids = _draw(probs, generator)
        token_log_probs.append(log_probs.gather(-1, token_ids[..., None]).squeeze(-1))
        attention_weights.append(attention.weights.float())
        locations.append(attention.locations)
        if attention.context_gate is not None:
            context_gates.append(attention.context_gate)
        token_ids = token_ids.masked_fill(finished, Vocabulary.PAD_ID)
        generated = torch.cat((generated, token_ids[..., None]), -1)
        finished |= token_ids == Vocabulary.EOS_ID
    return _to_hypotheses(
        generated,
        torch.stack(token_log_probs, -1),
        torch.stack(attention_weights, 2),
        torch.stack(locations, -1),
        torch.stack(context_gates, -1) if context_gates else None,
    )


def _filter_top_k_top_p(scores: Tensor, top_k: int, top_p: float) -> Tensor:
    """Set the scores (..., V) of all but the most probable tokens to −∞. The most probable token always remains."""
    if top_k:
        kth_score = scores.topk(min(top_k, scores.shape[-1])).values[..., -1:]
        scores = scores.masked_fill(scores < kth_score, -torch.inf)
    if top_p < 1:
        probs, order = scores.softmax(-1).sort(dim=-1, descending=True)
        removed = probs.cumsum(-1) - probs >= top_p  # the preceding tokens already reach top_p
        removed[..., 0] = False  # a tiny top_p may round to 0 in single precision
        scores = scores.masked_fill(torch.zeros_like(removed).scatter(-1, order, removed), -torch.inf)
    return scores


def _draw(probs: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one index from each distribution (..., V) by inverting its cumulative distribution function.

    One random number per distribution; ``torch.multinomial`` draws V, which takes ten times as long on a CPU.
    """
    cumulative = probs.cumsum(-1)  # (..., V)
    total = cumulative[..., -1:]
    draws = torch.rand(total.shape, generator=generator, device=probs.device) * total
    # A product that rounds up to the total would be above all tokens.
    draws = torch.minimum(draws, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, draws, right=True).squeeze(-1)


def _to_hypotheses(
    generated: Tensor, log_probs: Tensor, attention_weights: Tensor, locations: Tensor, context_gates: Tensor | None
) -> list[list[Hypothesis]]:
    """Return the N hypotheses of each image, sorted by score.

    Tokens, log-probabilities, locations and gates have the shape (B, N, T), attention weights (B, N, T, L).
    """
    lengths = (generated != Vocabulary.PAD_ID).sum(-1).tolist()
    all_ids, all_log_probs, all_locations = generated.tolist(), log_probs.tolist(), locations.tolist()
    attention_weights = attention_weights.cpu()
    results = []
    for image, image_lengths in enumerate(lengths):
        hypotheses = []
        for index, length in enumerate(image_lengths):
            ids = all_ids[image][index][:length]
            words = ids[:-1] if ids[-1] == Vocabulary.EOS_ID else ids
            weights = attention_weights[image, index, : len(words)]
            token_log_probs, token_locations = (
                values[image][index][:length] for values in (all_log_probs, all_locations)
            )
            gates = None if context_gates is None else context_gates[image, index, : len(words)].tolist()
            hypotheses.append(Hypothesis(words, token_log_probs, weights, token_locations, gates))
        results.append(sorted(hypotheses, key=lambda hypothesis: sum(hypothesis.log_probs), reverse=True))
    return results
