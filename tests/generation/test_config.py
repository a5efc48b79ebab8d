import dataclasses
import subprocess
import sys
from typing import get_type_hints

import pytest

from captioning.generation import GenerationConfig
from captioning.generation.options import GenerationOptions
from captioning.utils.errors import CaptioningError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 0}, "max_length must be >= 1, got 0"),
        ({"min_length": 0}, "min_length must be >= 1, got 0"),
        ({"max_length": 3, "min_length": 4}, r"min_length must be <= max_length \(3\), got 4"),
        ({"num_beams": 0}, "num_beams must be >= 1, got 0"),
        ({"num_beam_groups": 0}, "num_beam_groups must be >= 1, got 0"),
        ({"num_beams": 4, "num_beam_groups": 3}, r"num_beam_groups must divide num_beams \(4\), got 3"),
        ({"temperature": 0.0}, "temperature must be > 0, got 0.0"),
        ({"temperature": float("nan")}, "temperature must be > 0, got nan"),
        ({"top_p": 0.0}, "top_p must be > 0, got 0.0"),
        ({"top_p": 1.5}, "top_p must be <= 1, got 1.5"),
        ({"top_k": -1}, "top_k must be >= 0, got -1"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size must be >= 0, got -1"),
        ({"diversity_penalty": -0.1}, "diversity_penalty must be >= 0, got -0.1"),
        ({"length_penalty": -0.1}, "length_penalty must be >= 0, got -0.1"),
    ],
)
def test_invalid_settings_raise_a_one_line_error(settings: dict, message: str) -> None:
    with pytest.raises(CaptioningError, match=message) as caught:
        GenerationConfig(**settings)
    assert "\n" not in str(caught.value)


def test_num_return_sequences_is_limited_by_num_beams_unless_sampling() -> None:
    config = GenerationConfig(num_beams=3)
    config.check_num_return_sequences(3)
    with pytest.raises(CaptioningError, match=r"num_return_sequences must be in \[1, 3\], got 4; increase num_beams"):
        config.check_num_return_sequences(4)
    sampling = GenerationConfig(do_sample=True)
    sampling.check_num_return_sequences(4)
    for invalid in (config, sampling):
        with pytest.raises(CaptioningError, match="num_return_sequences must be >= 1, got 0"):
            invalid.check_num_return_sequences(0)


def test_order_and_defaults_are_stable() -> None:
    """Positional use and stored model files depend on them."""
    assert dataclasses.asdict(GenerationConfig()) == {
        "max_length": 40,
        "min_length": 1,
        "no_repeat_ngram_size": 0,
        "num_beams": 1,
        "length_penalty": 0.0,
        "num_beam_groups": 1,
        "diversity_penalty": 0.5,
        "do_sample": False,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
    }
    assert GenerationConfig(7).max_length == 7


def test_each_field_has_help_and_only_known_bounds() -> None:
    for field in dataclasses.fields(GenerationConfig):
        assert field.metadata["help"], field.name
        assert field.metadata.keys() <= {"help", "ge", "gt", "le"}, field.name
        assert isinstance(field.type, type), "flags and the REST schema use the type"
        assert f"{field.name}: {field.metadata['help']}" in GenerationConfig.__doc__
        if field.type is not bool:
            assert field.metadata.keys() & {"ge", "gt"}, f"{field.name} has no lower bound"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.5}, "temperature has no effect without sampling; set do_sample"),
        ({"top_k": 5}, "top_k has no effect without sampling"),
        ({"top_p": 0.9}, "top_p has no effect without sampling"),
        ({"num_beams": 3, "do_sample": True}, "num_beams has no effect with do_sample"),
        ({"length_penalty": 0.7, "do_sample": True}, "length_penalty has no effect with do_sample"),
        ({"length_penalty": 0.7}, "length_penalty has no effect without beam search; set num_beams"),
        ({"num_beams": 3, "diversity_penalty": 2.0}, "diversity_penalty has no effect without groups"),
    ],
)
def test_settings_without_effect(settings: dict, message: str) -> None:
    with pytest.raises(CaptioningError, match=message):
        GenerationConfig(**settings).check_effect(settings)


def test_settings_with_effect() -> None:
    for settings in (
        {"do_sample": True, "temperature": 0.7, "top_k": 9, "top_p": 0.9},
        {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 1.0, "length_penalty": 0.7},
        {"temperature": 1.0},  # the default
    ):
        GenerationConfig(**settings).check_effect(settings)
    stored_beams = GenerationConfig(num_beams=3, length_penalty=0.7, do_sample=True)
    stored_beams.check_effect(["do_sample"])  # only settings that the user gave are checked


def test_generation_config_is_imported_without_torch() -> None:
    code = "import sys; from captioning.generation import GenerationConfig; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_options_of_a_captioner_are_the_settings() -> None:
    fields = {field.name: field.type for field in dataclasses.fields(GenerationConfig)}
    assert {name: type_ | None for name, type_ in fields.items()} == get_type_hints(GenerationOptions)
