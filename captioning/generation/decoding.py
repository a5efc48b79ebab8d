"""Entry point of caption generation: beam search or sampling, as configured."""

from typing import TYPE_CHECKING

from captioning.generation.beam_search import beam_search
from captioning.generation.config import GenerationConfig
from captioning.generation.hypothesis import Hypothesis
from captioning.generation.step_decoder import StepDecoder
from captioning.utils.array_ops import Array

if TYPE_CHECKING:
    import torch

    from captioning.models.attention import AttentionFn


def generate(
    decoder: StepDecoder,
    features: Array,
    config: GenerationConfig,
    generator: "torch.Generator | None",
    num_return_sequences: int = 1,
    attention_fn: "AttentionFn | None" = None,
) -> list[list[Hypothesis]]:
    """Generate captions of each image, best first.

    Args:
        decoder: in evaluation mode.
        features: (B, L, D).
        config: the settings.
        generator: random generator of sampling, on the device of the features; None for beam search.
        num_return_sequences: number of captions per image. Beam search returns fewer if its groups find the same ones.
        attention_fn: overrides the attention function of the decoder.
    """
    config.check_num_return_sequences(num_return_sequences)
    if config.do_sample:
        from captioning.generation.sampling import sample  # requires torch

        assert generator is not None
        return sample(config, decoder, features, generator, num_return_sequences, attention_fn)
    return beam_search(config, decoder, features, num_return_sequences, attention_fn)
