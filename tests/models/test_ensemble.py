from pathlib import Path

import numpy as np
import pytest
import torch

from captioning import Captioner
from captioning.generation import GenerationConfig, generate
from captioning.models.ensemble import EnsembleDecoder, EnsembleEncoder
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError
from tests.conftest import make_captioner


@pytest.fixture
def members() -> list[Captioner]:
    """Two models with the same encoder and decoders of different sizes."""
    first, second = make_captioner(), make_captioner(hidden_size=24, attention_size=8, context_gate="none")
    second.encoder.load_state_dict(first.encoder.state_dict())
    return [first, second]


def save(members: list[Captioner], directory: Path) -> list[Path]:
    paths = [directory / f"{name}.safetensors" for name in "abcd"[: len(members)]]
    for member, path in zip(members, paths, strict=True):
        member.save(path)
    return paths


@pytest.mark.parametrize("shares_features", [True, False])
def test_probabilities_and_maps_are_the_mean(members: list[Captioner], shares_features: bool) -> None:
    torch.manual_seed(1)
    features = torch.randn(2, 64, 128)
    decoders = [member.decoder for member in members]
    ensemble = EnsembleDecoder(decoders, shares_features)
    memory, state = ensemble.init_state(features if shares_features else features.repeat(1, 1, 2))
    starts = [decoder.init_state(features) for decoder in decoders]
    token_ids = torch.full((2, 1), Vocabulary.BOS_ID)
    for _ in range(3):
        log_probs, state, attention = ensemble.step(token_ids, state, memory)
        steps = [decoder.step(token_ids, start[1], start[0]) for decoder, start in zip(decoders, starts, strict=True)]
        starts = [(start[0], step[1]) for start, step in zip(starts, steps, strict=True)]
        expected = torch.stack([step[0].exp() for step in steps]).mean(0)
        torch.testing.assert_close(log_probs.exp(), expected)
        torch.testing.assert_close(attention.weights, torch.stack([step[2].weights for step in steps]).mean(0))
        assert attention.context_gate is None, "one of the decoders has none"
        token_ids = log_probs.argmax(-1)


@pytest.mark.parametrize("settings", [{}, {"num_beams": 4, "num_beam_groups": 2}, {"do_sample": True}])
def test_an_ensemble_of_equal_models_equals_the_model(settings: dict[str, object]) -> None:
    member = make_captioner()
    features = torch.randn(3, 64, 128, generator=torch.Generator().manual_seed(2))
    config = GenerationConfig(max_length=8, **settings)
    results = [
        generate(decoder, features, config, torch.Generator().manual_seed(0))
        for decoder in (member.decoder, EnsembleDecoder([member.decoder, member.decoder], shares_features=True))
    ]
    for (single,), (ensemble,) in zip(*results, strict=True):
        assert ensemble.token_ids == single.token_ids
        np.testing.assert_allclose(ensemble.log_probs, single.log_probs, atol=1e-4)
        np.testing.assert_allclose(ensemble.context_gates, single.context_gates, atol=1e-4)
        torch.testing.assert_close(ensemble.attention_weights, single.attention_weights, atol=1e-5, rtol=1e-4)


def test_models_with_the_same_encoder_share_it(members: list[Captioner], photo: Path, tmp_path: Path) -> None:
    shared = Captioner.from_pretrained(save(members, tmp_path))
    assert not isinstance(shared.encoder, EnsembleEncoder)
    caption = shared(photo)
    np.testing.assert_allclose(caption.attention_maps.sum((1, 2)), 1, rtol=1e-4)
    with torch.no_grad():
        next(members[1].encoder.parameters()).add_(0.5)
    separate = Captioner.from_pretrained(save(members, tmp_path))
    assert isinstance(separate.encoder, EnsembleEncoder)
    assert separate.encoder.feature_size == 256
    separate.encoder.load_state_dict(
        {
            f"backbone.{index}.{name}": tensor
            for index in range(2)
            for name, tensor in members[0].encoder.state_dict().items()
        }
    )
    separate.to("cpu")  # fuses the encoder with the new weights
    assert separate(photo).text == caption.text


def test_incompatible_models_are_refused(members: list[Captioner], tmp_path: Path) -> None:
    members[1].vocabulary = Vocabulary([*members[1].vocabulary.tokens[:-1], "other"])
    paths = save(members, tmp_path)
    with pytest.raises(CaptioningError, match=r"b\.safetensors: the vocabulary differs from that of .*a\.safetensors"):
        Captioner.from_pretrained(paths)
    with pytest.raises(CaptioningError, match="no model given"):
        Captioner.from_pretrained([])


def test_an_ensemble_cannot_be_saved(members: list[Captioner], tmp_path: Path) -> None:
    ensemble = Captioner.from_pretrained(save(members, tmp_path))
    with pytest.raises(CaptioningError, match="not possible with an ensemble"):
        ensemble.save(tmp_path / "ensemble.safetensors")


def test_the_attention_mode_of_hard_models_is_kept(photo: Path, tmp_path: Path) -> None:
    hard = [make_captioner(attention="hard") for _ in range(2)]
    for captioner in hard:
        captioner.attention_mode = "argmax"
    paths = save([*hard, make_captioner()], tmp_path)
    ensemble = Captioner.from_pretrained(paths[:2])
    assert ensemble.attention_mode == "argmax"
    assert ensemble(photo).receptive_field is None, "the mean of several locations is not a single one"
    mixed = Captioner.from_pretrained(paths[1:])
    assert mixed.attention_mode == "expectation"
    assert not mixed.decoder.is_hard
    with pytest.raises(CaptioningError, match="requires hard attention"):
        mixed.with_options(attention_mode="argmax")
