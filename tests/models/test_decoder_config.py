import re
from dataclasses import FrozenInstanceError, asdict
from typing import Any

import pytest

from captioning.models.decoder import Decoder
from captioning.models.decoder_config import DecoderConfig
from captioning.utils.errors import CaptioningError

CHOICES = ("architecture", "context_gate", "attention_activation", "attention_score", "feature_mixer", "attention")


@pytest.mark.parametrize("name", CHOICES)
def test_unknown_choices_are_rejected(name: str) -> None:
    with pytest.raises(CaptioningError, match=f"unknown {name} 'x'; choose one of "):
        DecoderConfig(**{name: "x"})


@pytest.mark.parametrize("name", ["projection_size", "embedding_size", "hidden_size", "attention_size"])
@pytest.mark.parametrize("size", [0, -7])
def test_sizes_must_be_positive(name: str, size: int) -> None:
    with pytest.raises(CaptioningError, match=f"^{name} must be >= 1, got {size}$"):
        DecoderConfig(**{name: size})


@pytest.mark.parametrize("name", ["dropout", "word_dropout", "location_dropout"])
def test_dropout_probabilities_lie_in_the_half_open_unit_interval(name: str) -> None:
    for prob in (-0.1, 1.0, float("nan")):
        with pytest.raises(CaptioningError, match=re.escape(f"{name} must be in [0, 1), got {prob}")):
            DecoderConfig(**{name: prob})
    DecoderConfig(**{name: 0.0})
    DecoderConfig(**{name: 0.99})


@pytest.mark.parametrize("attention", ["soft", "hard"])
@pytest.mark.parametrize("temperature", [0.0, -3.0, float("nan")])
def test_attention_temperature_must_be_positive(attention: Any, temperature: float) -> None:
    with pytest.raises(CaptioningError, match=f"attention_temperature must be > 0, got {temperature}"):
        DecoderConfig(attention=attention, attention_temperature=temperature)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention_temperature": 2.0}, "attention_temperature 2.0 has no effect on soft attention"),
        (
            {"attention": "hard", "attention_activation": "sparsemax"},
            "attention_activation 'sparsemax' requires soft attention",
        ),
        ({"attention_score": "dot", "attention_size": 64}, "attention_size 64 has no effect on attention_score 'dot'"),
        ({"attention_score": "general", "attention_size": 64}, "attention_size 64 has no effect"),
        ({"attention_score": "location", "attention_size": 64}, "attention_size 64 has no effect"),
        ({"spatial_dropout": True}, "spatial_dropout applies to projected features; set projection_size"),
        ({"attention_score": "location", "location_dropout": 0.5}, "set location_dropout to 0"),
        (
            {"tie_word_embeddings": True, "architecture": "luong", "embedding_size": 5, "hidden_size": 8},
            "tie_word_embeddings with architecture 'luong' requires embedding_size 5 equal to hidden_size 8",
        ),
    ],
)
def test_contradictory_and_ineffective_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptioningError, match=re.escape(message)) as error:
        DecoderConfig(**settings)
    assert "\n" not in str(error.value)


def test_effective_settings_are_accepted() -> None:
    DecoderConfig(attention="hard", attention_temperature=2.0)
    DecoderConfig(attention_activation="entmax15")
    DecoderConfig(attention_score="scaled_dot", attention_size=64)
    DecoderConfig(spatial_dropout=True, projection_size=64)
    DecoderConfig(tie_word_embeddings=True, architecture="luong", embedding_size=8, hidden_size=8)


def test_config_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        DecoderConfig().dropout = 0.5  # type: ignore[misc]  # the error under test


def test_decoder_config_round_trip() -> None:
    config = DecoderConfig(projection_size=8, hidden_size=16, attention="hard", attention_temperature=0.5)
    decoder = Decoder(11, 6, 4, **asdict(config))
    assert decoder.config == {"vocabulary_size": 11, "feature_size": 6, "num_locations": 4, **asdict(config)}
    assert Decoder(**decoder.config).config == decoder.config
    assert decoder.attention.score_fn.key_proj.out_features == 256, "the default attention_size"


def test_decoder_validates_its_settings() -> None:
    with pytest.raises(CaptioningError, match="dropout must be in"):
        Decoder(11, 6, 4, dropout=1.0)
