"""β of each word in the results of every search."""

import pytest
import torch

from captioning.generation import GenerationConfig, generate
from captioning.preprocessing.vocabulary import Vocabulary
from tests.generation.helpers import make_decoder


@pytest.mark.parametrize("gate", ["scalar", "vector"])
@pytest.mark.parametrize("architecture", ["show_attend_tell", "luong"])
@pytest.mark.parametrize(
    "settings", [{}, {"num_beams": 4}, {"num_beams": 4, "num_beam_groups": 2}, {"do_sample": True}], ids=str
)
def test_gates_follow_from_the_hidden_state(gate: str, architecture: str, settings: dict) -> None:
    decoder = make_decoder(context_gate=gate, architecture=architecture)
    assert decoder.context_gate is not None
    features = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(1))
    config = GenerationConfig(max_length=8, **settings)
    for image, (hypothesis, *_) in enumerate(generate(decoder, features, config, torch.Generator().manual_seed(2))):
        memory, state = decoder.init_state(features[image : image + 1])
        expected = []
        for token_id in [Vocabulary.BOS_ID, *hypothesis.token_ids][: len(hypothesis.token_ids)]:
            previous = state
            _, state, _ = decoder.step(torch.tensor([[token_id]]), state, memory)
            hidden = previous.hidden if architecture == "show_attend_tell" else state.hidden
            expected.append(decoder.context_gate(hidden).sigmoid().mean().item())
        assert hypothesis.context_gates == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("settings", [{"num_beams": 2}, {"do_sample": True}], ids=str)
def test_none_without_a_gate(settings: dict) -> None:
    decoder = make_decoder(context_gate="none")
    config = GenerationConfig(max_length=5, **settings)
    ((hypothesis,),) = generate(decoder, torch.randn(1, 6, 8), config, torch.Generator())
    assert hypothesis.context_gates is None
