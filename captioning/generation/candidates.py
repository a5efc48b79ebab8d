"""Candidate selection of one beam search step, with the diversity penalty between groups of beams.

Shapes: B images, G groups of K/G beams each, C candidates per group, V tokens.
"""

import math
from typing import NamedTuple

from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils import array_ops as ops
from captioning.utils.array_ops import Array


class Candidates(NamedTuple):
    """The best continuations of each group, with and without the end token, best first."""

    scores: Array  # (B, G, C), total log-probabilities, without the diversity penalty
    parent_beams: Array  # (B, G, C), indices into all K beams
    token_ids: Array  # (B, G, C)
    kept: Array  # (B, G, K/G), indices into all G·C candidates: those that become the new beams


def split_groups(array: Array, num_groups: int) -> Array:
    """Split (B, K, ...) into groups (B, G, K/G, ...). At the first step, all groups share the only beam."""
    if array.shape[1] == 1:
        return ops.expand(array[:, None], (len(array), num_groups, *array.shape[1:]))
    return array.reshape(len(array), num_groups, -1, *array.shape[2:])


def select_candidates(
    beam_scores: Array, log_probs: Array, num_groups: int, beams_per_group: int, diversity_penalty: float
) -> Candidates:
    """Select the best candidates of each group.

    A token is penalized in a group for each beam of the previous groups that continues with it (Vijayakumar et al.
    2018, "Diverse Beam Search"). The penalty affects the selection, not the scores.

    Args:
        beam_scores: (B, K), total log-probabilities of the beams.
        log_probs: (B, K, V), of the next token, −∞ where it is forbidden.
        num_groups: G.
        beams_per_group: K/G after this step; before the first step there is one beam.
        diversity_penalty: subtracted once for each use of a token.
    """
    num_beams = log_probs.shape[1]
    grouped_scores, grouped_log_probs = split_groups(beam_scores, num_groups), split_groups(log_probs, num_groups)
    usage_counts: Array = 0
    groups = []
    for group in range(num_groups):
        group_log_probs = grouped_log_probs[:, group]
        penalized = group_log_probs - diversity_penalty * usage_counts if group else group_log_probs
        selected = _select_in_group(grouped_scores[:, group], group_log_probs, penalized, beams_per_group)
        groups.append(selected)
        if group + 1 < num_groups:
            tokens = ops.gather(selected.token_ids, 1, selected.kept)[:, None]
            usage_counts = usage_counts + ops.count_last(tokens, log_probs.shape[-1])  # (B, 1, V)
    scores, parent_beams, token_ids, kept = (ops.stack(arrays, 1) for arrays in zip(*groups, strict=True))
    group_index = ops.ids(range(num_groups), kept)[:, None]
    # num_beams // num_groups is 0 at the first step, where all groups share the only beam.
    parent_beams = parent_beams + group_index * (num_beams // num_groups)
    return Candidates(scores, parent_beams, token_ids, kept + group_index * scores.shape[-1])


def _select_in_group(beam_scores: Array, log_probs: Array, penalized: Array, num_beams: int) -> Candidates:
    """Select within one group: (B, C) and (B, K/G) instead of (B, G, ·), with indices relative to the group."""
    vocabulary_size = log_probs.shape[-1]
    # Half of the candidates may be end tokens, so twice as many candidates as beams are required.
    num_candidates = min(2 * num_beams, log_probs.shape[1] * vocabulary_size)
    per_beam = min(2 * num_beams, vocabulary_size)
    # The best candidates overall are among the best of each beam, which avoids a sum over all K·V scores.
    num_images = len(log_probs)
    ranks, token_ids = ops.topk_last(penalized, per_beam)  # (B, beams, per_beam)
    ranks, order = ops.topk_last((beam_scores[..., None] + ranks).reshape(num_images, -1), num_candidates)  # (B, C)
    token_ids, parent_beams = ops.gather(token_ids.reshape(num_images, -1), 1, order), order // per_beam
    unfinished = ops.masked_fill(ranks, token_ids == Vocabulary.EOS_ID, -math.inf)
    _, kept = ops.topk_last(unfinished, min(num_beams, num_candidates))
    token_log_probs = ops.gather(log_probs.reshape(num_images, -1), 1, parent_beams * vocabulary_size + token_ids)
    return Candidates(ops.gather(beam_scores, 1, parent_beams) + token_log_probs, parent_beams, token_ids, kept)
