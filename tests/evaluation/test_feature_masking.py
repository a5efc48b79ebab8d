"""Masking of the locations that a word did not attend to."""

import pytest
import torch

from captioning.evaluation.feature_masking import attended_only_log_probs
from captioning.models.attention import attend_expectation
from tests.models.test_decoder import make_batch, make_decoder


def drops(attention_fn=None, **settings) -> torch.Tensor:
    decoder = make_decoder(**settings).eval()
    features, token_ids, lengths = make_batch([[5]])
    filler = torch.randn(8, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        log_probs = attended_only_log_probs(decoder, features, filler, token_ids[0, 0].tolist(), attention_fn)
        output = decoder(features, token_ids, lengths, attention_fn)
    expected = output.logits.log_softmax(-1).gather(1, output.targets[:, None])[:, 0]
    torch.testing.assert_close(log_probs[:, 0], expected)
    return log_probs[:, 0] - log_probs[:, 1]


@pytest.mark.parametrize("architecture", ["show_attend_tell", "luong"])
@pytest.mark.parametrize("projection_size", [None, 8])
def test_words_of_hard_attention_depend_on_one_location_only(architecture: str, projection_size: int | None) -> None:
    settings = {"architecture": architecture, "projection_size": projection_size}
    assert not drops(attention="hard", **settings).any(), "exactly zero"


def test_other_models_depend_on_unattended_locations() -> None:
    assert drops(attention="soft").abs().min() > 1e-4
    assert drops(attend_expectation, attention="hard").abs().min() > 1e-4
    assert drops(attention="hard", feature_mixer="mean").abs().min() > 1e-4
