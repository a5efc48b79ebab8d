"""Tensors of captions of different lengths: B images, C captions per image, T time steps."""

from torch import Tensor


def flatten_tokens(x: Tensor, index: Tensor) -> Tensor:
    """(B, C, T, ·) -> (N, ·), the entries at the flat token indices (N,)."""
    return x.flatten(0, 2)[index]


def active_blocks(lengths: Tensor) -> list[tuple[int, int]]:
    """For each step, the size (images, captions) of the leading block that contains all unfinished captions.

    The block is correct for any order of the captions, and smallest if images and captions are sorted by decreasing
    length.
    """
    blocks = []
    for step in range(int(lengths.max())):
        active = (lengths > step).nonzero()  # (number of unfinished captions, 2)
        last_image, last_caption = active.max(dim=0).values.tolist()
        blocks.append((last_image + 1, last_caption + 1))
    return blocks
