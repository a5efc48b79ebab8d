from typing import Any

import numpy as np
import pytest
import torch

from captioning.generation import GenerationConfig
from captioning.generation.beam_search import beam_search
from captioning.models.decoder import Decoder, DecoderState, Memory
from tests.generation.helpers import make_decoder, token_ids_of


class NumpyDecoder:
    """A decoder whose inputs and outputs are NumPy arrays, as in ONNX Runtime."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def init_state(self, features: np.ndarray) -> tuple[Memory, DecoderState]:
        memory, state = self.decoder.init_state(torch.from_numpy(features))
        return to_numpy(memory), to_numpy(state)

    def step(self, token_ids: np.ndarray, state: DecoderState, memory: Memory, attention_fn: Any = None) -> Any:
        state, memory = (type(arrays)(*map(torch.from_numpy, arrays)) for arrays in (state, memory))
        log_probs, state, attention = self.decoder.step(torch.from_numpy(token_ids), state, memory, attention_fn)
        return log_probs.numpy(), to_numpy(state), to_numpy(attention)


def to_numpy(tensors: Any) -> Any:
    return type(tensors)(*(tensor.numpy() for tensor in tensors))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_beams": 4, "no_repeat_ngram_size": 2, "length_penalty": 0.7},
        {"num_beams": 6, "num_beam_groups": 3, "min_length": 3},
    ],
)
def test_numpy_arrays_and_tensors_yield_the_same_captions(settings: dict[str, Any]) -> None:
    decoder, features = make_decoder(eos_bias=1.0), torch.randn(7, 6, 8)
    config = GenerationConfig(10, **settings)
    count = config.num_beams
    results = beam_search(config, decoder, features, count)
    numpy_results = beam_search(config, NumpyDecoder(decoder), features.numpy(), count)
    assert token_ids_of(numpy_results) == token_ids_of(results)
    for hypotheses, numpy_hypotheses in zip(results, numpy_results, strict=True):
        for hypothesis, numpy_hypothesis in zip(hypotheses, numpy_hypotheses, strict=True):
            assert numpy_hypothesis.log_probs == pytest.approx(hypothesis.log_probs, abs=1e-5)
            np.testing.assert_allclose(numpy_hypothesis.attention_weights, hypothesis.attention_weights, atol=1e-5)
