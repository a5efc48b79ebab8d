"""Detection of a process that was forked after torch had started its threads.

The threads do not exist in the child, where the first parallel operation waits for them forever.
"""

import os

import torch

from captioning.utils.errors import CaptioningError

_has_started_threads = False
_is_broken = False


def check_not_forked() -> None:
    """Raise CaptioningError in a child process that would hang. Call it before each use of the model."""
    global _has_started_threads
    if _is_broken:
        raise CaptioningError(
            "this process was forked after a caption had been generated, and would hang; start processes with "
            "multiprocessing.get_context('spawn'), or call torch.set_num_threads(1) before the first caption"
        )
    _has_started_threads = _has_started_threads or torch.get_num_threads() > 1


def _after_fork_in_child() -> None:
    global _is_broken
    _is_broken = _has_started_threads


if hasattr(os, "register_at_fork"):  # absent on Windows, which cannot fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
