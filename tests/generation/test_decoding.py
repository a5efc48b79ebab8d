"""Every search with sparse attention."""

import pytest
import torch

from captioning.generation import GenerationConfig, generate
from captioning.models.attention import attend_uniform
from tests.generation.helpers import make_decoder, teacher_force


@pytest.mark.parametrize("activation", ["sparsemax", "entmax15"])
@pytest.mark.parametrize(
    "settings", [{}, {"num_beams": 4}, {"num_beams": 4, "num_beam_groups": 2}, {"do_sample": True}], ids=str
)
def test_sparse_attention_equals_teacher_forcing(activation: str, settings: dict) -> None:
    decoder = make_decoder(attention_activation=activation, eos_bias=1.0)
    features = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(1))
    config = GenerationConfig(max_length=30, **settings)
    num_zeros = 0
    for image, hypotheses in enumerate(generate(decoder, features, config, torch.Generator().manual_seed(2))):
        for hypothesis in hypotheses:
            log_probs, weights = teacher_force(decoder, features[image : image + 1], hypothesis.token_ids)
            assert hypothesis.log_probs == pytest.approx(log_probs[: len(hypothesis.log_probs)], abs=1e-4)
            torch.testing.assert_close(hypothesis.attention_weights, weights)
            num_zeros += int((hypothesis.attention_weights == 0).sum())
    assert num_zeros > 0


def test_uniform_control_of_sparse_attention() -> None:
    decoder = make_decoder(attention_activation="sparsemax")
    features = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))
    results = generate(decoder, features, GenerationConfig(10), torch.Generator(), 1, attend_uniform)
    for (hypothesis,) in results:
        torch.testing.assert_close(hypothesis.attention_weights, torch.full((len(hypothesis.token_ids), 6), 1 / 6))
