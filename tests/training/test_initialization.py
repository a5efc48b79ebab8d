"""Initial weights from a model with other settings."""

from pathlib import Path

import pytest
import torch

from captioning.captioner import Captioner
from captioning.models.decoder import Decoder
from captioning.models.encoder import Encoder
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.training.initialization import load_initial_weights
from captioning.utils.errors import CaptioningError

VOCABULARY = Vocabulary([*Vocabulary.SPECIAL_TOKENS, "a", "dog"])


def build(output_stride: int, attention_score: str) -> tuple[Encoder, Decoder]:
    encoder = Encoder("efficientnet_lite0", image_size=64, output_stride=output_stride)
    num_locations = (64 // output_stride) ** 2
    sizes = {"embedding_size": 8, "hidden_size": 8}
    return encoder, Decoder(len(VOCABULARY), 1280, num_locations, attention_score=attention_score, **sizes)


def test_output_stride_may_differ_from_init_from(tmp_path: Path) -> None:
    source_encoder, source_decoder = build(16, "general")
    path = tmp_path / "source.safetensors"
    Captioner(source_encoder, source_decoder, VOCABULARY).save(path)
    encoder, decoder = build(32, "general")
    assert load_initial_weights(str(path), encoder, decoder, VOCABULARY) == len(VOCABULARY)
    for module, source in ((encoder, source_encoder), (decoder, source_decoder)):
        state, source_state = module.state_dict(), source.state_dict()
        assert state.keys() == source_state.keys()
        assert all(torch.equal(tensor, source_state[name]) for name, tensor in state.items())


def test_location_scores_require_the_same_number_of_locations(tmp_path: Path) -> None:
    path = tmp_path / "source.safetensors"
    Captioner(*build(16, "location"), VOCABULARY).save(path)
    with pytest.raises(CaptioningError, match=r"num_locations is 4, but 16 in init_from .*source\.safetensors"):
        load_initial_weights(str(path), *build(32, "location"), VOCABULARY)
