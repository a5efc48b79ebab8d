"""State of a batched beam search: the live beams, the finished captions, and the history for backtracking.

Shapes: B images, K beams per image in G groups, C candidates per group, T generated tokens, V tokens, L locations.
"""

import dataclasses
import math
from typing import Any, NamedTuple

from captioning.generation.candidates import Candidates, select_candidates
from captioning.generation.config import GenerationConfig
from captioning.generation.constraints import apply_constraints
from captioning.generation.hypothesis import Hypothesis
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils import array_ops as ops
from captioning.utils.array_ops import Array


class BeamStep(NamedTuple):
    """Candidates of one step, and which of them became beams.

    Lists instead of tensors: backtracking reads single numbers, which is slow on tensors.
    """

    parent_beams: list[list[int]]  # (B, G·C)
    token_ids: list[list[int]]  # (B, G·C)
    log_probs: list[list[float]]  # (B, G·C), of the token alone
    attention_weights: Array  # (B, previous K, L), on the CPU
    context_gates: list[list[float]] | None  # (B, previous K)
    kept: list[list[int]]  # (B, K), the candidate that each beam continues
    rows: dict[int, int]  # image -> row of this step; finished images have none


class _Ending(NamedTuple):
    """Last candidate of a caption. The order of the fields is the order of preference of captions."""

    is_truncated: bool
    rank: int  # within its group
    negative_score: float
    step: int
    candidate: int


@dataclasses.dataclass
class BeamState:
    """The beams of all unfinished images. The beams of an image share its memory, which is not copied per beam."""

    memory: Any  # arrays (B, ...), a named tuple such as Memory
    decoder_state: Any  # arrays (B, K, H), a named tuple such as DecoderState
    token_ids: Array  # (B, K), the last tokens
    generated: Array  # (B, K, T)
    scores: Array  # (B, K), total log-probabilities; −∞ for a beam without a continuation
    finished_scores: Array  # (B, G, K/G), length-normalized scores of finished captions, best first; −∞ if none
    finished_at: Array  # (B, G, K/G, 2), step and candidate of their end tokens
    rows: dict[int, int]  # image -> row of the tensors
    history: list[BeamStep] = dataclasses.field(default_factory=list)

    @classmethod
    def start(cls, memory: Any, decoder_state: Any, config: GenerationConfig) -> "BeamState":
        """One beam per image, which contains only the start token."""
        hidden = decoder_state[0]
        num_images = len(hidden)
        token_ids = ops.full_ids((num_images, 1), Vocabulary.BOS_ID, hidden)
        finished_shape = (num_images, config.num_beam_groups, config.num_beams // config.num_beam_groups)
        return cls(
            memory=memory,
            decoder_state=decoder_state,
            token_ids=token_ids,
            generated=ops.full_ids((num_images, 1, 0), 0, hidden),
            scores=ops.full((num_images, 1), 0.0, hidden),
            finished_scores=ops.full(finished_shape, -math.inf, hidden),
            finished_at=ops.full_ids((*finished_shape, 2), 0, hidden),
            rows={image: image for image in range(num_images)},
        )

    def advance(
        self,
        config: GenerationConfig,
        log_probs: Array,
        decoder_state: Any,
        attention_weights: Array,
        context_gates: Array | None = None,
    ) -> None:
        """Extend the beams by one token.

        Args:
            config: the settings.
            log_probs: (B, K, V), of the next token.
            decoder_state: (B, K, H), after the step.
            attention_weights: (B, K, L), of the step.
            context_gates: (B, K), of the step; None without a context gate.
        """
        _, num_groups, beams_per_group = self.finished_scores.shape
        allowed = apply_constraints(config, log_probs, self.generated)
        candidates = select_candidates(self.scores, allowed, num_groups, beams_per_group, config.diversity_penalty)
        self._collect_finished(candidates, config.length_penalty)
        num_images, _, vocabulary_size = log_probs.shape
        # (B, G·C), kept (B, K)
        scores, parent_beams, token_ids, kept = (array.reshape(num_images, -1) for array in candidates)
        index = parent_beams * vocabulary_size + token_ids
        token_log_probs = ops.gather(log_probs.reshape(num_images, -1), 1, index)
        self.history.append(
            BeamStep(
                parent_beams.tolist(),
                token_ids.tolist(),
                token_log_probs.tolist(),
                ops.to_host(attention_weights),
                None if context_gates is None else context_gates.tolist(),
                kept.tolist(),
                self.rows,
            )
        )
        self.scores = ops.gather(ops.masked_fill(scores, token_ids == Vocabulary.EOS_ID, -math.inf), 1, kept)
        self.token_ids, parents = ops.gather(token_ids, 1, kept), ops.gather(parent_beams, 1, kept)  # (B, K)
        self.decoder_state = decoder_state._make(_gather_beams(array, parents) for array in decoder_state)
        self.generated = ops.concat((_gather_beams(self.generated, parents), self.token_ids[..., None]), -1)

    def _collect_finished(self, candidates: Candidates, length_penalty: float) -> None:
        """Merge candidates that end now into the finished captions, of which the best K/G per group remain."""
        step, beams_per_group = len(self.history), self.finished_scores.shape[-1]
        scores = candidates.scores / (step + 1) ** length_penalty
        # Only the best K/G candidates may finish; an end token further down competes with better unfinished beams.
        scores = ops.masked_fill(scores, candidates.token_ids != Vocabulary.EOS_ID, -math.inf)[..., :beams_per_group]
        num_groups, num_candidates = candidates.scores.shape[1:]
        first = ops.ids(range(num_groups), scores)[:, None] * num_candidates
        index = ops.expand(first + ops.ids(range(scores.shape[-1]), scores), scores.shape)
        ends_here = ops.stack((ops.full_ids(index.shape, step, index), index), -1)  # (B, G, K/G, 2)
        self.finished_scores, order = ops.topk_last(ops.concat((self.finished_scores, scores), -1), beams_per_group)
        order = ops.expand(order[..., None], (*order.shape, 2))
        self.finished_at = ops.gather(ops.concat((self.finished_at, ends_here), 2), 2, order)

    def compact(self, images: list[int]) -> None:
        """Keep only these images. The history keeps the others, since each step has its own ``rows``."""
        index = ops.ids([self.rows[image] for image in images], self.token_ids)
        self.memory = self.memory._make(array[index] for array in self.memory)
        self.decoder_state = self.decoder_state._make(array[index] for array in self.decoder_state)
        self.token_ids, self.generated, self.scores = self.token_ids[index], self.generated[index], self.scores[index]
        self.finished_scores, self.finished_at = self.finished_scores[index], self.finished_at[index]
        self.rows = {image: row for row, image in enumerate(images)}

    def backtrack(self, images: list[int], num_return_sequences: int) -> dict[int, list[Hypothesis]]:
        """Build the best distinct hypotheses of each image.

        Finished captions precede truncated ones. Within both, the best of each group come first.
        """
        finished_scores, finished_at = self.finished_scores.tolist(), self.finished_at.tolist()
        scores = self.scores.reshape(len(self.scores), self.finished_scores.shape[1], -1).tolist()  # (B, G, K/G)
        results = {}
        for image in images:
            row = self.rows[image]
            endings = self._endings(finished_scores[row], finished_at[row], scores[row], self.history[-1].kept[row])
            hypotheses: dict[tuple[int, ...], Hypothesis] = {}
            for ending in sorted(endings):
                hypothesis = _build_hypothesis(self.history, image, ending.step, ending.candidate)
                hypotheses.setdefault(tuple(hypothesis.token_ids), hypothesis)
                if len(hypotheses) == num_return_sequences:
                    break
            results[image] = list(hypotheses.values())
        return results

    def _endings(
        self,
        finished_scores: list[list[float]],
        finished_at: list[list[list[int]]],
        scores: list[list[float]],
        kept: list[int],
    ) -> list[_Ending]:
        """All captions of one image: the finished ones, then the live beams as far as a group has too few."""
        last_step = len(self.history) - 1
        endings = []
        for group, group_finished in enumerate(finished_scores):
            num_finished = sum(score > -math.inf for score in group_finished)
            for rank in range(num_finished):
                endings.append(_Ending(False, rank, -group_finished[rank], *finished_at[group][rank]))
            width = len(scores[group])
            group_kept = kept[group * width : (group + 1) * width]
            for rank, (score, candidate) in enumerate(zip(scores[group], group_kept, strict=True), num_finished):
                if rank < len(group_finished) and score > -math.inf:
                    endings.append(_Ending(True, rank, -score, last_step, candidate))
        return endings


def _gather_beams(array: Array, beams: Array) -> Array:
    """Select the beams (B, K) of each image from (B, N, ·)."""
    return array[ops.ids(range(len(array)), beams)[:, None], beams]


def _build_hypothesis(history: list[BeamStep], image: int, last_step: int, candidate: int) -> Hypothesis:
    """Follow the parents of a candidate back to the first step."""
    token_ids: list[int] = []
    log_probs: list[float] = []
    attention_weights: list[Array] = []
    context_gates: list[float] = []
    for index in range(last_step, -1, -1):
        step = history[index]
        row = step.rows[image]
        parent = step.parent_beams[row][candidate]
        token_ids.append(step.token_ids[row][candidate])
        log_probs.append(step.log_probs[row][candidate])
        attention_weights.append(step.attention_weights[row, parent])
        if step.context_gates is not None:
            context_gates.append(step.context_gates[row][parent])
        if index:
            previous = history[index - 1]
            candidate = previous.kept[previous.rows[image]][parent]
    for values in (token_ids, log_probs, attention_weights, context_gates):
        values.reverse()
    num_words = len(token_ids) - (token_ids[-1] == Vocabulary.EOS_ID)
    weights = ops.stack(attention_weights[:num_words])
    gates = None if history[0].context_gates is None else context_gates[:num_words]
    return Hypothesis(token_ids[:num_words], log_probs, weights, context_gates=gates)
