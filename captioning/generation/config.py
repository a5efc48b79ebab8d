"""Settings of caption generation. Command-line flags, the REST schema and the web page derive from this dataclass."""

import dataclasses
import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, NamedTuple

from captioning.utils.errors import CaptioningError

# Keys of the field metadata that are bounds, as pydantic names them: operator for messages, and test of a value.
_BOUNDS = {
    "ge": (">=", lambda value, bound: value >= bound),
    "gt": (">", lambda value, bound: value > bound),
    "le": ("<=", lambda value, bound: value <= bound),
}


class _ExpectedType(NamedTuple):
    types: tuple[type, ...]
    name: str


_TYPES: dict[Any, _ExpectedType] = {
    int: _ExpectedType((Integral,), "a whole number"),
    float: _ExpectedType((Real,), "a number"),
    bool: _ExpectedType((bool,), "True or False"),
}

_SAMPLING_SETTINGS = ("temperature", "top_k", "top_p")
_BEAM_SETTINGS = ("num_beams", "length_penalty", "num_beam_groups", "diversity_penalty")


def _setting(default: Any, text: str, **bounds: float) -> Any:
    return dataclasses.field(default=default, metadata={"help": text, **bounds})


@dataclasses.dataclass(frozen=True)
class GenerationConfig:
    """Settings of :func:`captioning.generation.generate`, named as in Hugging Face ``generate()``.

    One difference: there is no prompt, so ``max_length`` counts the generated tokens only, including the end token.
    The metadata of each field holds its ``help`` text and its bounds (``ge``, ``gt``, ``le``).
    """

    max_length: int = _setting(
        40, "maximum number of generated tokens, including the end token; longer captions are truncated", ge=1
    )
    min_length: int = _setting(1, "minimum number of words, excluding the end token; must not exceed max_length", ge=1)
    no_repeat_ngram_size: int = _setting(0, "n-grams of this size occur at most once in a caption; 0 disables it", ge=0)
    num_beams: int = _setting(1, "number of beams of beam search; 1 is greedy search", ge=1, le=1000)
    length_penalty: float = _setting(
        0.0, "beam search ranks finished captions by log p / length ** length_penalty; larger favors longer ones", ge=0
    )
    num_beam_groups: int = _setting(1, "number of groups of diverse beam search; must divide num_beams", ge=1)
    diversity_penalty: float = _setting(
        0.5, "log-probability subtracted from a token for each beam of a previous group that uses it", ge=0
    )
    do_sample: bool = _setting(
        False,
        "sample tokens instead of beam search; num_beams, length_penalty, num_beam_groups and diversity_penalty must "
        "then keep their defaults",
    )
    temperature: float = _setting(
        1.0, "softmax temperature of sampling; below 1 favors probable tokens, above 1 flattens the distribution", gt=0
    )
    top_k: int = _setting(0, "sample only from the k most probable tokens; 0 disables it", ge=0)
    top_p: float = _setting(
        1.0, "sample only from the most probable tokens whose total probability reaches top_p", gt=0, le=1
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            self.check_bounds(field.name, getattr(self, field.name))
        if self.min_length > self.max_length:
            raise CaptioningError(f"min_length must be <= max_length ({self.max_length}), got {self.min_length}")
        if self.num_beams % self.num_beam_groups:
            raise CaptioningError(
                f"num_beam_groups must divide num_beams ({self.num_beams}), got {self.num_beam_groups}"
            )

    @classmethod
    def check_bounds(cls, name: str, value: Any) -> None:
        """Raise CaptioningError if a value of one setting has another type or is out of its bounds."""
        field = cls.__dataclass_fields__[name]
        bounds, expected = field.metadata, _TYPES[field.type]
        if not isinstance(value, expected.types) or (isinstance(value, bool) and bool not in expected.types):
            raise CaptioningError(f"{name} must be {expected.name}, got {value!r}")
        if isinstance(value, float) and math.isinf(value):
            raise CaptioningError(f"{name} must be finite, got {value}")
        for key, (operator, is_within) in _BOUNDS.items():
            if key in bounds and not is_within(value, bounds[key]):
                raise CaptioningError(f"{name} must be {operator} {bounds[key]}, got {value}")

    def check_effect(self, names: Iterable[str]) -> None:
        """Raise CaptioningError if a named setting was changed but is not used, e.g. ``top_k`` without ``do_sample``.

        Names that are not generation settings are ignored.
        """
        for name in names:
            if name not in _DEFAULTS or getattr(self, name) == _DEFAULTS[name]:
                continue
            if name in _SAMPLING_SETTINGS and not self.do_sample:
                raise CaptioningError(f"{name} has no effect without sampling; set do_sample, or remove {name}")
            if name in _BEAM_SETTINGS and self.do_sample:
                raise CaptioningError(f"{name} has no effect with do_sample; remove one of them")
            if name == "length_penalty" and self.num_beams == 1:
                raise CaptioningError("length_penalty has no effect without beam search; set num_beams, or remove it")
            if name == "diversity_penalty" and self.num_beam_groups == 1:
                raise CaptioningError(
                    "diversity_penalty has no effect without groups; set num_beam_groups, or remove it"
                )

    def replace(self, **changes: Any) -> "GenerationConfig":
        """Return a copy with other values. An unknown name raises CaptioningError with the nearest known one."""
        names = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in names:
                similar = difflib.get_close_matches(name, names, 1)
                hint = f"did you mean '{similar[0]}'?" if similar else f"the generation settings are {', '.join(names)}"
                raise CaptioningError(f"unknown option '{name}'; {hint}")
        return dataclasses.replace(self, **changes)

    def check_num_return_sequences(self, num_return_sequences: int) -> None:
        """Raise CaptioningError if the settings cannot produce this number of captions per image."""
        if num_return_sequences < 1:
            raise CaptioningError(f"num_return_sequences must be >= 1, got {num_return_sequences}")
        if not self.do_sample and num_return_sequences > self.num_beams:
            raise CaptioningError(
                f"num_return_sequences must be in [1, {self.num_beams}], got {num_return_sequences}; "
                "increase num_beams or set do_sample"
            )


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(GenerationConfig)}


# Values that interactive uses of sampling start from: with 1.0, unlikely and offensive words are frequent.
SAMPLING_DEFAULTS = {"temperature": 0.7, "top_p": 0.9}

# jsonargparse takes the help of "captioning fit" from the docstring.
GenerationConfig.__doc__ = f"{GenerationConfig.__doc__}\n    Args:\n" + "\n".join(
    f"        {field.name}: {field.metadata['help']}." for field in dataclasses.fields(GenerationConfig)
)
