"""Candidate selection of one beam search step, with the diversity penalty between groups of beams.

Shapes: B images, G groups of K/G beams each, C candidates per group, V tokens.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from captioning.preprocessing.vocabulary import Vocabulary


class Candidates(NamedTuple):
    """The best continuations of each group, with and without the end token, best first."""

    scores: Tensor  # (B, G, C), total log-probabilities, without the diversity penalty
    parent_beams: Tensor  # (B, G, C), indices into all K beams
    token_ids: Tensor  # (B, G, C)
    kept: Tensor  # (B, G, K/G), indices into all G·C candidates: those that become the new beams


def split_groups(tensor: Tensor, num_groups: int) -> Tensor:
    """Split (B, K, ...) into groups (B, G, K/G, ...). At the first step, all groups share the only beam."""
    if tensor.shape[1] == 1:
        return tensor[:, None].expand(-1, num_groups, *tensor.shape[1:])
    return tensor.unflatten(1, (num_groups, -1))


def select_candidates(
    beam_scores: Tensor, log_probs: Tensor, num_groups: int, beams_per_group: int, diversity_penalty: float
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
    usage_counts = beam_scores.new_zeros(len(log_probs), 1, log_probs.shape[-1])  # (B, 1, V)
    groups = []
    for group in range(num_groups):
        group_log_probs = grouped_log_probs[:, group]
        penalized = group_log_probs - diversity_penalty * usage_counts if group else group_log_probs
        selected = _select_in_group(grouped_scores[:, group], group_log_probs, penalized, beams_per_group)
        tokens = selected.token_ids.gather(1, selected.kept)[:, None]
        usage_counts = usage_counts.scatter_add(-1, tokens, torch.ones_like(tokens, dtype=usage_counts.dtype))
        groups.append(selected)
    scores, parent_beams, token_ids, kept = (torch.stack(tensors, 1) for tensors in zip(*groups, strict=True))
    group_index = torch.arange(num_groups, device=kept.device)[:, None]
    # num_beams // num_groups is 0 at the first step, where all groups share the only beam.
    parent_beams = parent_beams + group_index * (num_beams // num_groups)
    return Candidates(scores, parent_beams, token_ids, kept + group_index * scores.shape[-1])


def _select_in_group(beam_scores: Tensor, log_probs: Tensor, penalized: Tensor, num_beams: int) -> Candidates:
    """Select within one group: (B, C) and (B, K/G) instead of (B, G, ·), with indices relative to the group."""
    vocabulary_size = log_probs.shape[-1]
    # Half of the candidates may be end tokens, so twice as many candidates as beams are required.
    num_candidates = min(2 * num_beams, log_probs.shape[1] * vocabulary_size)
    per_beam = min(2 * num_beams, vocabulary_size)
    # The best candidates overall are among the best of each beam, which avoids a sum over all K·V scores.
    ranks, token_ids = penalized.topk(per_beam)  # (B, beams, per_beam)
    ranks, order = (beam_scores[..., None] + ranks).flatten(1).topk(num_candidates)  # (B, C)
    token_ids, parent_beams = token_ids.flatten(1).gather(1, order), order // per_beam
    unfinished = ranks.masked_fill(token_ids == Vocabulary.EOS_ID, -torch.inf)
    kept = unfinished.topk(min(num_beams, num_candidates)).indices
    token_log_probs = log_probs.flatten(1).gather(1, parent_beams * vocabulary_size + token_ids)
    return Candidates(beam_scores.gather(1, parent_beams) + token_log_probs, parent_beams, token_ids, kept)
