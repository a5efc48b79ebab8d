"""Time steps of the decoder under teacher forcing: one after the other, or attention at all steps at once.

Shapes as in :mod:`captioning.models.decoder`; S location samples per caption.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from captioning.models.attention import AttentionFn
from captioning.models.caption_blocks import active_blocks
from captioning.models.decoder_output import DecoderState, Memory, StepOutputs

if TYPE_CHECKING:
    from captioning.models.decoder import Decoder


def run_steps(
    decoder: "Decoder",
    input_gates: Tensor,
    state: DecoderState,
    memory: Memory,
    lengths: Tensor,
    attention_fn: AttentionFn | None,
) -> StepOutputs:
    """Run the ``show_attend_tell`` architecture over projected input embeddings (T, B, C, 4H), step by step.

    Each step computes only the block of unfinished captions. Returns tensors (B, C, T, ·).
    """
    num_images, num_captions = lengths.shape
    # unbind() instead of slices: the gradient of each slice is as large as the whole tensor.
    all_gates = input_gates.unbind()  # T × (B, C, 4H)
    state = DecoderState(*(x.expand(-1, num_captions, -1) for x in state))  # (B, C, H)
    steps = []
    for gates, (images, captions) in zip(all_gates, active_blocks(lengths), strict=True):
        if state.hidden.shape[:2] != (images, captions):
            state = DecoderState(*(x[:images, :captions] for x in state))
            memory = Memory(*(x[:images] for x in memory))
        previous = state
        state, attention = decoder.attend_and_step(gates[:images, :captions], previous, memory, attention_fn)
        outputs = [state.hidden, attention.context, attention.weights]
        if decoder.is_hard:
            outputs += [attention.scores, attention.locations[..., None], previous.hidden, previous.cell]
        padding = (0, 0, 0, num_captions - captions, 0, num_images - images)
        steps.append([F.pad(x, padding) for x in outputs])
    return StepOutputs(*(torch.stack(tensors, dim=2) for tensors in zip(*steps, strict=True)))


def attend_at_all_steps(
    decoder: "Decoder",
    input_gates: Tensor,
    state: DecoderState,
    memory: Memory,
    lengths: Tensor,
    attention_fn: AttentionFn | None,
    num_samples: int,
) -> StepOutputs:
    """Run the LSTM of the ``luong`` architecture over (T, B, C, 4H), then attend at all steps at once.

    The LSTM does not read the context, so attention needs no loop. A loop would read, and differentiate, the features
    and keys of each image once per step. The S samples of a caption share the LSTM states. Returns tensors
    (B, C · S, T, ·).
    """
    num_captions = lengths.shape[1] // num_samples
    state = DecoderState(*(x.expand(-1, num_captions, -1) for x in state))  # (B, C, H)
    states = []
    blocks = active_blocks(lengths[:, ::num_samples])
    for gates, (images, captions) in zip(input_gates.unbind(), blocks, strict=True):
        state = DecoderState(*(x[:images, :captions] for x in state))
        state = decoder.lstm_cell(gates[:images, :captions] + memory.gates[:images], state)
        padding = (0, 0, 0, num_captions - captions, 0, len(lengths) - images)
        states.append([F.pad(x, padding) for x in state])
    hidden, cell = (torch.stack(x, dim=2).repeat_interleave(num_samples, dim=1) for x in zip(*states, strict=True))
    attention = decoder.attend(hidden.flatten(1, 2), memory, attention_fn)
    context, weights, scores, locations = (x.unflatten(1, hidden.shape[1:3]) for x in attention[:4])
    if not decoder.is_hard:
        return StepOutputs(hidden, context, weights)
    return StepOutputs(hidden, context, weights, scores, locations[..., None], hidden, cell)
