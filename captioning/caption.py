"""A generated caption: words, probabilities and one attention map per word."""

import dataclasses
import math
from typing import Any

import numpy as np
from PIL import Image

from captioning.preprocessing.image import Box, ImageInput, open_image
from captioning.visualization.overlay import DEFAULT_OPACITY, DEFAULT_PANEL_WIDTH, AttentionRenderer, render_panels


@dataclasses.dataclass(frozen=True)
class Caption:
    """A caption of an image, with one attention map per word.

    Args:
        words: T words of the caption.
        token_probs: probability of each word and, if the caption is finished, of the end token as the last entry.
        attention_maps: (T, rows, columns), one per word; each sums to 1.
        image: the captioned image, as passed to the captioner.
        crop_box: the region of the image that the maps cover.
        receptive_field: for hard attention at single locations, width and height of the receptive field of a location
            in fractions of the image; otherwise None.
        context_gates: β of each word, the weight in [0, 1] with which the attended image features entered (mean over
            channels for a vector gate); None for a model without a context gate.
        alternatives: further captions, best first, if ``num_return_sequences`` is more than 1.
    """

    words: list[str]
    token_probs: list[float]
    attention_maps: np.ndarray
    image: ImageInput
    crop_box: Box
    receptive_field: tuple[float, float] | None = None
    context_gates: list[float] | None = None
    alternatives: tuple["Caption", ...] = ()

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def score(self) -> float:
        """Geometric mean of the token probabilities, in [0, 1]."""
        return math.exp(sum(math.log(max(prob, 1e-12)) for prob in self.token_probs) / len(self.token_probs))

    def to_dict(self, attention_maps: bool = True) -> dict[str, Any]:
        """Convert the caption and its alternatives to JSON values.

        Args:
            attention_maps: include the maps, ``crop_box`` and ``receptive_field``.
        """
        alternatives = [alternative._to_dict_alone(attention_maps) for alternative in self.alternatives]
        return {**self._to_dict_alone(attention_maps), "alternatives": alternatives}

    def _to_dict_alone(self, attention_maps: bool) -> dict[str, Any]:
        words: list[dict[str, Any]] = [
            {"word": word, "probability": round(prob, 4)}
            for word, prob in zip(self.words, self.token_probs, strict=False)  # the end token has no word
        ]
        if self.context_gates is not None:
            for word, gate in zip(words, self.context_gates, strict=True):
                word["context_gate"] = round(gate, 4)
        values: dict[str, Any] = {"caption": self.text, "score": round(self.score, 4)}
        if attention_maps:
            field = self.receptive_field
            values["crop_box"] = [round(edge, 6) for edge in self.crop_box]
            values["receptive_field"] = None if field is None else [round(side, 6) for side in field]
            for word, attention_map in zip(words, self.attention_maps, strict=True):
                word["attention_map"] = [[round(weight, 4) for weight in row] for row in attention_map.tolist()]
        return {**values, "words": words}

    def overlay(
        self,
        panel_width: int = DEFAULT_PANEL_WIDTH,
        colormap: str = "spotlight",
        opacity: float = DEFAULT_OPACITY,
    ) -> Image.Image:
        """Render one sheet with a panel per word: the image with the attention map of the word.

        Args:
            panel_width: width of a panel in pixels.
            colormap: ``spotlight`` darkens regions of low attention; ``hot`` and ``viridis`` are color scales.
            opacity: maximum opacity of the map, in [0, 1].
        """
        image = open_image(self.image, panel_width)
        return render_panels(image, self.words, self.renderer(colormap, opacity), panel_width)

    def renderer(self, colormap: str = "spotlight", opacity: float = DEFAULT_OPACITY) -> AttentionRenderer:
        """Build a renderer of the attention maps, for images of any size."""
        return AttentionRenderer(self.attention_maps, self.crop_box, self.receptive_field, colormap, opacity)
