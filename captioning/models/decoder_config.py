"""Settings of the decoder, with validation."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from captioning.models.attention import AttentionActivation, AttentionScoreType, AttentionType
from captioning.models.feature_mixer import FeatureMixerType
from captioning.utils.errors import CaptioningError

DecoderArchitecture = Literal["show_attend_tell", "luong"]
ContextGate = Literal["none", "scalar", "vector"]

DEFAULT_ATTENTION_SIZE = 256
_SCORES_WITH_ATTENTION_SIZE = ("additive", "scaled_dot")


@dataclass(frozen=True)
class DecoderConfig:
    """Settings of the decoder.

    Args:
        projection_size: output size of a linear layer with ReLU and dropout that is applied to the encoder features.
            null uses the features as they are.
        embedding_size: size E of the word embeddings.
        hidden_size: size H of the LSTM state.
        attention_size: size A of the space in which the scores additive and scaled_dot compare features with the
            hidden state. null for 256. The other scores do not use it.
        attention: "soft" attends to the weighted mean of all locations, "hard" to one location per token.
        attention_temperature: softmax temperature of hard attention, α = softmax(score / temperature).
        attention_activation: function from scores to the weights of soft attention: "softmax", or "sparsemax" (sparser)
            or "entmax15" (less sparse), which set the weights of low scores to exactly zero.
        attention_score: score function between the features of a location and the hidden state.
        architecture: "show_attend_tell" attends with the previous hidden state, then updates the LSTM (Xu et al. 2015).
            "luong" updates the LSTM with the mean feature, then attends with the new hidden state (Luong et al. 2015).
        context_gate: gate β on the context vector: "none", one "scalar" (Xu et al. 2015, section 4.2.1), or a "vector"
            with one value per channel.
        feature_mixer: module that mixes features across locations before attention.
        tie_word_embeddings: share the weights of the output layer with the word embeddings.
        dropout: dropout probability on projected features, on the hidden state and before the output layer.
        spatial_dropout: drop the same channels at all locations of an image in the projected features.
        word_dropout: probability of replacing an input token with <unk> during training.
        location_dropout: fraction of the locations of each image that is dropped during training.
    """

    projection_size: int | None = None
    embedding_size: int = 256
    hidden_size: int = 512
    attention_size: int | None = None
    attention: AttentionType = "soft"
    attention_temperature: float = 1.0
    attention_activation: AttentionActivation = "softmax"
    attention_score: AttentionScoreType = "additive"
    architecture: DecoderArchitecture = "show_attend_tell"
    context_gate: ContextGate = "scalar"
    feature_mixer: FeatureMixerType = "none"
    tie_word_embeddings: bool = False
    dropout: float = 0.3
    spatial_dropout: bool = False
    word_dropout: float = 0.0
    location_dropout: float = 0.0

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_ranges()
        self._check_combinations()

    def _check_choices(self) -> None:
        choices: dict[str, Any] = {
            "attention": AttentionType,
            "attention_activation": AttentionActivation,
            "attention_score": AttentionScoreType,
            "architecture": DecoderArchitecture,
            "context_gate": ContextGate,
            "feature_mixer": FeatureMixerType,
        }
        for name, literal in choices.items():
            value = getattr(self, name)
            if value not in get_args(literal):
                raise CaptioningError(f"unknown {name} '{value}'; choose one of {', '.join(get_args(literal))}")

    def _check_ranges(self) -> None:
        for name in ("projection_size", "embedding_size", "hidden_size", "attention_size"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise CaptioningError(f"{name} must be >= 1, got {size}")
        for name in ("dropout", "word_dropout", "location_dropout"):
            prob = getattr(self, name)
            if not 0 <= prob < 1:
                raise CaptioningError(f"{name} must be in [0, 1), got {prob}")
        if not self.attention_temperature > 0:
            raise CaptioningError(f"attention_temperature must be > 0, got {self.attention_temperature}")

    def _check_combinations(self) -> None:
        """Refuse settings that contradict each other or have no effect."""
        if self.attention == "soft" and self.attention_temperature != 1:
            raise CaptioningError(
                f"attention_temperature {self.attention_temperature} has no effect on soft attention; "
                "remove it or set attention to 'hard'"
            )
        if self.attention == "hard" and self.attention_activation != "softmax":
            raise CaptioningError(
                f"attention_activation '{self.attention_activation}' requires soft attention, since hard attention is "
                "trained with log α, which is infinite for a weight of zero; use 'softmax' or set attention to 'soft'"
            )
        if self.attention_size is not None and self.attention_score not in _SCORES_WITH_ATTENTION_SIZE:
            raise CaptioningError(
                f"attention_size {self.attention_size} has no effect on attention_score '{self.attention_score}'; "
                f"remove it or use {' or '.join(_SCORES_WITH_ATTENTION_SIZE)}"
            )
        if self.spatial_dropout and self.projection_size is None:
            raise CaptioningError("spatial_dropout applies to projected features; set projection_size or remove it")
        if self.location_dropout and self.attention_score == "location":
            raise CaptioningError(
                "attention_score 'location' requires a fixed set of locations; set location_dropout to 0"
            )
        if self.tie_word_embeddings and self.architecture == "luong" and self.embedding_size != self.hidden_size:
            raise CaptioningError(
                f"tie_word_embeddings with architecture 'luong' requires embedding_size {self.embedding_size} "
                f"equal to hidden_size {self.hidden_size}"
            )
