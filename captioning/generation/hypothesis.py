"""Result of caption generation, in token ids."""

from collections.abc import Sequence
from typing import NamedTuple

from captioning.utils.array_ops import Array


class Hypothesis(NamedTuple):
    """A generated caption without special tokens.

    ``log_probs`` has one entry per token and, if the caption is finished, a last one for the end token. ``locations``
    has as many entries, the locations that hard attention attended to (−1 if all contribute), and is empty for a
    caption of beam search. ``context_gates`` is None for a model without a context gate.
    """

    token_ids: list[int]
    log_probs: list[float]
    attention_weights: Array  # (T, L), T = len(token_ids)
    locations: Sequence[int] = ()
    context_gates: list[float] | None = None  # T values

    @property
    def is_finished(self) -> bool:
        """True if the caption ends with the end token, false if it is truncated at ``max_length``."""
        return len(self.log_probs) > len(self.token_ids)
