"""Query parameters and responses of the REST API, as documented by /openapi.json."""

import dataclasses
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from captioning.captioner import Captioner
from captioning.generation import GenerationConfig
from captioning.models.attention import AttentionMode
from captioning.utils.errors import CaptioningError

_MAX_BEAMS = 20
_MAX_LENGTH = 100
# Limits of the server on top of those of GenerationConfig: they bound the time and memory of a request.
_SERVER_LIMITS: dict[str, dict[str, float]] = {
    "num_beams": {"le": _MAX_BEAMS},
    "length_penalty": {"le": 10},
    "min_length": {"le": _MAX_LENGTH},
    "max_length": {"le": _MAX_LENGTH},
    "no_repeat_ngram_size": {"le": _MAX_LENGTH},
    "diversity_penalty": {"le": 100},
    "temperature": {"ge": 0.01, "le": 100},
}
_CONSTRAINTS = {"ge": "minimum", "gt": "exclusive_minimum", "le": "maximum", "lt": "exclusive_maximum"}
_TYPE_NAMES = {bool: "boolean", int: "integer", float: "number"}


class CommonParams(BaseModel):
    """Query parameters beside those of GenerationConfig."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str | None = Field(None, description="name of the model; default: the first of /v1/models")
    num_return_sequences: int = Field(
        1, ge=1, le=_MAX_BEAMS, description="number of captions per image; at most num_beams unless do_sample is set"
    )
    attention_mode: AttentionMode | None = Field(
        None,
        description="hard attention at inference: 'argmax' uses the most probable location, 'sample' draws one, "
        "'expectation' averages all locations by their attention weights",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of do_sample and of attention_mode 'sample'")

    def captioner_options(self) -> dict[str, Any]:
        """Return the keyword arguments of :meth:`captioning.Captioner.with_options`."""
        return self.model_dump(include=set(GenerationParams.model_fields) - {"model"})


def check_effective(params: CommonParams, captioner: Captioner) -> None:
    """Raise CaptioningError if a given parameter has no effect for this captioner."""
    names = {field.name for field in dataclasses.fields(GenerationConfig)}
    captioner.generation.check_effect(names & params.model_fields_set)
    if "seed" in params.model_fields_set and not captioner.is_stochastic:
        raise CaptioningError("seed has no effect without do_sample or attention_mode 'sample'; omit it")


def _constraints(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Merge the constraints of a GenerationConfig field with the limits of the server."""
    constraints = {key: field.metadata[key] for key in _CONSTRAINTS if key in field.metadata}
    limits = _SERVER_LIMITS.get(field.name, {})
    if "ge" in limits:
        constraints.pop("gt", None)
    return constraints | limits


def _generation_fields() -> dict[str, Any]:
    """Derive one optional query parameter from each field of GenerationConfig; None keeps the default of the model."""
    types = get_type_hints(GenerationConfig)
    return {
        field.name: (
            types[field.name] | None,
            Field(None, description=field.metadata["help"], **_constraints(field)),
        )
        for field in dataclasses.fields(GenerationConfig)
    }


GenerationParams = create_model("GenerationParams", __base__=CommonParams, **_generation_fields())


def describe_parameters() -> dict[str, dict[str, Any]]:
    """Describe the settings of GenerationConfig, num_return_sequences and seed: type, help and range by name."""
    types = get_type_hints(GenerationConfig) | {"num_return_sequences": int, "seed": int}
    described = {}
    for name, value_type in types.items():
        info = GenerationParams.model_fields[name]
        limits = {
            text: getattr(constraint, key)
            for constraint in info.metadata
            for key, text in _CONSTRAINTS.items()
            if hasattr(constraint, key)
        }
        described[name] = {"type": _TYPE_NAMES[value_type], "help": info.description, **limits}
    return described


class CaptionParams(GenerationParams):  # type: ignore[misc, valid-type]  # mypy does not support dynamic base classes
    attention_maps: bool = Field(True, description="include the attention map of each word")


class OverlayParams(GenerationParams):  # type: ignore[misc, valid-type]  # as above
    format: Literal["html", "png"] = Field(
        "html", description="'html': an interactive page; 'png': one sheet with a panel per word"
    )


class Word(BaseModel):
    word: str
    probability: float
    context_gate: float | None = Field(
        None, description="weight of the image features for this word, 0 to 1; models with a context gate"
    )
    attention_map: list[list[float]] | None = Field(None, description="attention weights (rows, columns), sum 1")


class CaptionOut(BaseModel):
    caption: str
    score: float = Field(description="geometric mean of the token probabilities, 0 to 1")
    confidence: float | None = Field(None, description="probability that the caption is good; absent if not calibrated")
    is_uncertain: bool | None = Field(None, description="whether the confidence is below the threshold of the model")
    crop_box: tuple[float, float, float, float] | None = Field(
        None, description="left, top, right, bottom of the region that the maps cover, in fractions of the image"
    )
    receptive_field: tuple[float, float] | None = Field(
        None, description="hard attention: width and height of the receptive field, in fractions of the image"
    )
    words: list[Word]


class CaptionWithAlternatives(CaptionOut):
    alternatives: list[CaptionOut] = Field(description="further captions, best first")


class ImageError(BaseModel):
    error: str = Field(description="why this image could not be captioned; the others are")


class CaptionsResponse(BaseModel):
    model: str
    seconds: float = Field(description="time from the arrival of the images to the captions")
    captions: list[CaptionWithAlternatives | ImageError] = Field(
        description="one per image, in the order of the request"
    )


class ErrorResponse(BaseModel):
    detail: str = Field(description="the error in one line, and what to do next")
