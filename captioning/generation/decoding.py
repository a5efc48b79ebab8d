"""Entry point of caption generation: beam search or sampling, as configured."""

import torch
from torch import Tensor

from captioning.generation.beam_search import beam_search
from captioning.generation.config import GenerationConfig
from captioning.generation.hypothesis import Hypothesis
from captioning.generation.sampling import sample
from captioning.models.attention import AttentionFn
from captioning.models.decoder import Decoder


def generate(
    decoder: Decoder,
    features: Tensor,
    config: GenerationConfig,
    generator: torch.Generator,
    num_return_sequences: int = 1,
    attention_fn: AttentionFn | None = None,
) -> list[list[Hypothesis]]:
    """Generate captions of each image, best first.

    Args:
        decoder: in evaluation mode.
        features: (B, L, D).
        config: the settings.
        generator: random generator of sampling, on the device of the features.
        num_return_sequences: number of captions per image. Beam search returns fewer if its groups find the same ones.
        attention_fn: overrides the attention function of the decoder.
    """
    config.check_num_return_sequences(num_return_sequences)
    if config.do_sample:
        return sample(config, decoder, features, generator, num_return_sequences, attention_fn)
    return beam_search(config, decoder, features, num_return_sequences, attention_fn)
