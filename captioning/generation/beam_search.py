"""Beam search over ``Decoder.init_state`` and ``Decoder.step``, batched over images; greedy search is one beam.

Shapes: B images, K beams per image in G groups, L locations, D feature size.
"""

from typing import TYPE_CHECKING

from captioning.generation.beam_state import BeamState
from captioning.generation.config import GenerationConfig
from captioning.generation.hypothesis import Hypothesis
from captioning.generation.step_decoder import StepDecoder
from captioning.utils import array_ops as ops
from captioning.utils.array_ops import Array

if TYPE_CHECKING:
    from captioning.models.attention import AttentionFn

# Fraction of the images that must be finished before they are removed: removal copies the tensors of the others.
_COMPACTION_THRESHOLD = 0.2


def greedy_search(
    decoder: StepDecoder, features: Array, max_length: int = 40, attention_fn: "AttentionFn | None" = None
) -> list[Hypothesis]:
    """Generate one caption per image (B, L, D) from the most probable token at each step.

    ``max_length`` counts generated tokens, including the end token.
    """
    results = beam_search(GenerationConfig(max_length), decoder, features, attention_fn=attention_fn)
    return [hypotheses[0] for hypotheses in results]


def beam_search(
    config: GenerationConfig,
    decoder: StepDecoder,
    features: Array,
    num_return_sequences: int = 1,
    attention_fn: "AttentionFn | None" = None,
) -> list[list[Hypothesis]]:
    """Generate the most probable captions of each image, best first.

    Finished captions precede truncated ones, which are returned only if too few are finished. With several groups, the
    best caption of each group comes first.

    Args:
        config: reads all settings except those of sampling.
        decoder: in evaluation mode.
        features: (B, L, D).
        num_return_sequences: maximum number of captions per image, at most ``config.num_beams``.
        attention_fn: overrides the attention function of the decoder.
    """
    with ops.no_grad():
        state = BeamState.start(*decoder.init_state(features), config)
        results: dict[int, list[Hypothesis]] = {}
        for length in range(1, config.max_length + 1):
            log_probs, decoder_state, attention = decoder.step(
                state.token_ids, state.decoder_state, state.memory, attention_fn
            )
            state.advance(config, log_probs, decoder_state, attention.weights, attention.context_gate)
            finished = _is_finished(config, state.scores, state.finished_scores, num_return_sequences)
            if length == config.max_length or all(finished):
                results |= state.backtrack(list(state.rows), num_return_sequences)
                break
            if sum(finished) >= _COMPACTION_THRESHOLD * len(finished):
                done = [image for image, row in state.rows.items() if finished[row]]
                results |= state.backtrack(done, num_return_sequences)
                state.compact([image for image, row in state.rows.items() if not finished[row]])
    return [results[image] for image in range(len(features))]


def _is_finished(
    config: GenerationConfig, scores: Array, finished_scores: Array, num_return_sequences: int
) -> list[bool]:
    """For each image, whether no live beam (B, K) can improve on the finished captions (B, G, K/G)."""
    # The log-probability of a beam can only decrease, so this is an upper bound of its final score.
    best_possible = ops.maximum(scores.reshape(len(scores), config.num_beam_groups, -1), -1)  # (B, G)
    best_possible = best_possible / config.max_length**config.length_penalty
    required_per_group = -(-num_return_sequences // config.num_beam_groups)
    return (best_possible <= finished_scores[..., required_per_group - 1]).all(-1).tolist()
