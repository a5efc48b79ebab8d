"""Result of caption generation, in token ids."""

from typing import NamedTuple

from torch import Tensor


class Hypothesis(NamedTuple):
    """A generated caption without special tokens.

    ``log_probs`` has one entry per token and, if the caption is finished, a last one for the end token.
    """

    token_ids: list[int]
    log_probs: list[float]
    attention_weights: Tensor  # (T, L), T = len(token_ids)

    @property
    def is_finished(self) -> bool:
        """True if the caption ends with the end token, false if it is truncated at ``max_length``."""
        return len(self.log_probs) > len(self.token_ids)
