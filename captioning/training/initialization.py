"""Initial weights of a model from another model (``init_from``)."""

from typing import Any

import torch
from torch import nn

from captioning.models.checkpoint import build_modules, read_model
from captioning.models.decoder import Decoder
from captioning.models.decoder_config import DEFAULT_ATTENTION_SIZE
from captioning.models.encoder import Encoder
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError

# Settings without effect on the shape and the meaning of the weights. The vocabulary is checked separately.
_MAY_DIFFER = {
    "vocabulary_size",
    "output_stride",  # a CNN has the same weights with and without dilation
    "attention_temperature",
    "dropout",
    "spatial_dropout",
    "word_dropout",
    "location_dropout",
}


def load_initial_weights(source: str, encoder: Encoder, decoder: Decoder, vocabulary: Vocabulary) -> int:
    """Copy the weights of ``source`` into the encoder and the decoder.

    The vocabulary may contain additional words after those of the source. Their embeddings and output weights keep
    their random initial values.

    Args:
        source: name of a pretrained model, or path of a ``.safetensors`` or ``.ckpt`` file.
        encoder: encoder with the architecture of the source.
        decoder: decoder with the architecture of the source; hard attention may follow soft attention.
        vocabulary: vocabulary that starts with the tokens of the source.

    Returns:
        Number of tokens of the source.
    """
    source_encoder, source_decoder, source_vocabulary = build_modules(read_model(source))
    _check_settings(source, "encoder", encoder.config, source_encoder.config)
    _check_settings(source, "decoder", decoder.config, source_decoder.config)
    _check_vocabulary(source, vocabulary, source_vocabulary)
    encoder.load_state_dict(source_encoder.state_dict())
    _copy_first_rows(decoder, source_decoder)
    return len(source_vocabulary)


def _check_settings(source: str, part: str, config: dict[str, Any], source_config: dict[str, Any]) -> None:
    for name in config.keys() | source_config.keys():
        value, source_value = config.get(name), source_config.get(name)
        if name == "attention_size":
            value, source_value = (DEFAULT_ATTENTION_SIZE if size is None else size for size in (value, source_value))
        becomes_hard = name == "attention" and (source_value, value) == ("soft", "hard")
        is_unused = name == "num_locations" and config["attention_score"] != "location"
        if value != source_value and not (becomes_hard or is_unused or name in _MAY_DIFFER):
            raise CaptioningError(
                f"model.{part}.{name} is {value}, but {source_value} in init_from {source}; "
                f"set it to {source_value}, or use another init_from"
            )


def _check_vocabulary(source: str, vocabulary: Vocabulary, source_vocabulary: Vocabulary) -> None:
    tokens, source_tokens = vocabulary.tokens, source_vocabulary.tokens
    if tokens[: len(source_tokens)] != source_tokens:
        raise CaptioningError(
            f"the vocabulary does not start with the {len(source_tokens)} tokens of init_from {source}; "
            "build it from the same init_from"
        )


@torch.no_grad()
def _copy_first_rows(module: nn.Module, source: nn.Module) -> None:
    """Copy all tensors. Those of the vocabulary may have more rows than in the source."""
    tensors = module.state_dict()
    for name, source_tensor in source.state_dict().items():
        tensors[name][: len(source_tensor)].copy_(source_tensor)
