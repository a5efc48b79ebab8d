"""Types of keyword arguments of a captioner, for type checkers and editors."""

from typing import TypedDict

from captioning.models.attention import AttentionMode


class GenerationOptions(TypedDict, total=False):
    """The settings of :class:`captioning.generation.GenerationConfig`; None keeps the present value."""

    max_length: int | None
    min_length: int | None
    no_repeat_ngram_size: int | None
    num_beams: int | None
    length_penalty: float | None
    num_beam_groups: int | None
    diversity_penalty: float | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None


class CaptionOptions(GenerationOptions, total=False):
    """The options of a :class:`captioning.Captioner`."""

    attention_mode: AttentionMode | None
    num_return_sequences: int | None
    seed: int | None


class CallOptions(CaptionOptions, total=False):
    """The options of a call of a captioner."""

    batch_size: int
