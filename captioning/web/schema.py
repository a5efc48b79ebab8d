"""What a request may ask for and what it is answered with, as the OpenAPI description tells it."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from captioning.attention import LookName

_MOST_BEAMS = 20  # of what costs the server time and memory
_MOST_WORDS = 100


class Options(BaseModel):
    """How to caption. What is left out is as the model was validated; :class:`captioning.search.Search` tells more."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str | None = Field(None, description="name of a model, by default the first of /v1/models")
    n_best: int = Field(
        1, ge=1, le=_MOST_BEAMS, description="captions of each picture, at most the beam if not sampled"
    )
    look: LookName | None = Field(None, description="how a hard model looks")
    seed: int = Field(0, ge=0, lt=2**63, description="of all chance")
    beam: int | None = Field(None, ge=1, le=_MOST_BEAMS, description="captions that the search keeps; 1 is greedy")
    length_penalty: float | None = Field(None, le=10, description="compare captions by log p / length ** this")
    minimum_length: int | None = Field(None, le=_MOST_WORDS, description="words before which a caption does not end")
    maximum_length: int | None = Field(None, le=_MOST_WORDS, description="words after which it is cut")
    no_repeat: int | None = Field(None, le=_MOST_WORDS, description="never say so many words in a row twice")
    groups: int | None = Field(None, description="part the beam into groups that say different things")
    diversity: float | None = Field(None, le=100, description="how much a group avoids the words of the others")
    sample: bool | None = Field(None, description="draw words by chance instead of searching")
    temperature: float | None = Field(None, ge=0.01, le=100, description="of sample: below 1 safer, above 1 bolder")
    top_k: int | None = Field(None, description="of sample: draw among so many of the likeliest words only")
    nucleus: float | None = Field(None, description="of sample: draw among the likeliest words of this share")

    def for_captioner(self) -> dict[str, Any]:
        """What :meth:`captioning.captioner.Captioner.with_options` takes."""
        return self.model_dump(include=set(Options.model_fields) - {"model"})


class CaptionOptions(Options):
    maps: bool = Field(True, description="whether to tell where the model looked")


class OverlayOptions(Options):
    format: Literal["html", "png"] = Field("html", description="a page to point at words on, or a panel for each word")


class Word(BaseModel):
    word: str
    probability: float
    map: list[list[float]] | None = Field(None, description="rows of shares of the look, which sum to 1")


class OneCaption(BaseModel):
    caption: str
    score: float = Field(description="how sure the model was, 0 to 1")
    window: tuple[float, float, float, float] | None = Field(
        None, description="left, top, right and bottom of what the maps lie on, as shares of the photo"
    )
    field: tuple[float, float] | None = Field(
        None, description="of a hard model: width and height that one place sees, as shares of the photo"
    )
    words: list[Word]


class BestCaption(OneCaption):
    others: list[OneCaption] = Field(description="the next best")


class Answer(BaseModel):
    model: str
    captions: list[BestCaption] = Field(description="one of each picture, in their order")


class Problem(BaseModel):
    detail: str = Field(description="what is wrong and what to do")
