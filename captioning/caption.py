"""A generated caption: words, probabilities and one attention map per word."""

import dataclasses
import html
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from captioning.models.calibration import Calibration
from captioning.preprocessing.image import Box, ImageInput, open_image
from captioning.utils.errors import CaptioningError, MissingFileError
from captioning.visualization import export
from captioning.visualization.colormaps import DEFAULT_OPACITY
from captioning.visualization.overlay import AttentionRenderer
from captioning.visualization.sheet import DEFAULT_PANEL_WIDTH, render_panels

_FILE_FORMATS = ("html", "png", "gif", "npz")
_NOTEBOOK_IMAGE_SIDE = 800


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Caption:
    """A caption of an image, with one attention map per word.

    ``str(caption)`` is the text. Captions are equal if their words, probabilities, maps and alternatives are
    equal; rounding errors may differ with the batch size. In Jupyter, a caption shows the interactive page of its
    attention maps.

    Args:
        words: T words of the caption.
        token_probs: probability of each word and, if the caption is finished, of the end token as the last entry.
        attention_maps: (T, rows, columns), one per word; each sums to 1.
        image: the captioned image: its absolute path, the bytes of its file, or for other inputs a PIL image, which
            keeps all pixels in memory.
        crop_box: the region of the image that the maps cover.
        receptive_field: for hard attention at single locations, width and height of the receptive field of a location
            in fractions of the image; otherwise None.
        context_gates: β of each word, the weight in [0, 1] with which the attended image features entered (mean over
            channels for a vector gate); None for a model without a context gate.
        preview: JPEG of the image at a reduced size, used if ``image`` is a file that no longer exists.
        calibration: maps the score to the confidence; None for a model that is not calibrated.
        resembles_photo: False for a uniform image, a flat drawing or noise (preprocessing/photo_check.py).
        alternatives: further captions if ``num_return_sequences`` is more than 1, ordered by the criterion of the
            search, log p / length ** length_penalty.
    """

    words: list[str]
    token_probs: list[float]
    attention_maps: np.ndarray
    image: ImageInput
    crop_box: Box
    receptive_field: tuple[float, float] | None = None
    context_gates: list[float] | None = None
    preview: bytes | None = None
    calibration: Calibration | None = None
    resembles_photo: bool = True
    alternatives: tuple["Caption", ...] = ()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        alternatives = f", {len(self.alternatives)} alternatives" if self.alternatives else ""
        return f"<Caption {self.text!r}, score {self.score:.3f}{alternatives}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Caption):
            return NotImplemented
        return self._key() == other._key() and np.array_equal(self.attention_maps, other.attention_maps)

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        """The hashable fields that take part in comparison. Where the image came from does not."""
        return tuple(self.words), tuple(self.token_probs), self.crop_box, self.receptive_field, self.alternatives

    def _repr_html_(self) -> str:
        """The interactive page in a frame. It contains the image and works offline, also in a saved notebook."""
        page = self._render_page(_NOTEBOOK_IMAGE_SIDE).decode()
        return f'<iframe srcdoc="{html.escape(page)}" style="width: 100%; height: 640px; border: 0"></iframe>'

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def score(self) -> float:
        """Geometric mean of the token probabilities, in [0, 1]."""
        return math.exp(sum(math.log(max(prob, 1e-12)) for prob in self.token_probs) / len(self.token_probs))

    @property
    def confidence(self) -> float | None:
        """Estimated probability that the caption is good, in [0, 1]; None if the model is not calibrated.

        "Good" is defined in the calibration of the model, see :class:`captioning.models.calibration.Calibration`.
        """
        return None if self.calibration is None else self.calibration.confidence(self.score, self.resembles_photo)

    @property
    def is_uncertain(self) -> bool:
        """Whether the confidence is below the threshold of the model. False if the model is not calibrated."""
        if self.calibration is None:
            return False
        return self.calibration.confidence(self.score, self.resembles_photo) < self.calibration.min_confidence

    def to_dict(self, attention_maps: bool = True) -> dict[str, Any]:
        """Convert the caption and its alternatives to JSON values.

        Args:
            attention_maps: include the maps, ``crop_box`` and ``receptive_field``.
        """
        alternatives = [alternative._to_dict_alone(attention_maps) for alternative in self.alternatives]
        return {**self._to_dict_alone(attention_maps), "alternatives": alternatives}

    def _to_dict_alone(self, attention_maps: bool) -> dict[str, Any]:
        words: list[dict[str, Any]] = [
            {"word": word, "probability": _round(prob)}
            for word, prob in zip(self.words, self.token_probs, strict=False)  # the end token has no word
        ]
        if self.context_gates is not None:
            for word, gate in zip(words, self.context_gates, strict=True):
                word["context_gate"] = _round(gate)
        values: dict[str, Any] = {"caption": self.text, "score": _round(self.score)}
        if self.confidence is not None:
            values |= {"confidence": _round(self.confidence), "is_uncertain": self.is_uncertain}
        if attention_maps:
            field = self.receptive_field
            values["crop_box"] = [round(edge, 6) for edge in self.crop_box]
            values["receptive_field"] = None if field is None else [round(side, 6) for side in field]
            for word, attention_map in zip(words, self.attention_maps, strict=True):
                word["attention_map"] = [[_round(weight) for weight in row] for row in attention_map.tolist()]
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
        image, renderer = self.open_image(panel_width), self.renderer(colormap, opacity)
        return render_panels(image, self.words, renderer, panel_width, probs=self.token_probs, gates=self.context_gates)

    def renderer(self, colormap: str = "spotlight", opacity: float = DEFAULT_OPACITY) -> AttentionRenderer:
        """Build a renderer of the attention maps, for images of any size."""
        return AttentionRenderer(self.attention_maps, self.crop_box, self.receptive_field, colormap, opacity)

    def open_image(self, min_side: int | None = None) -> Image.Image:
        """Open the captioned image as RGB.

        Args:
            min_side: a JPEG file may be decoded at a reduced size, of no less than this side length.
        """
        try:
            return open_image(self.image, min_side)
        except MissingFileError:
            if self.preview is None:
                raise
            return open_image(self.preview)

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the caption with its attention maps to a file. The suffix selects the format.

        Args:
            path: ``.html`` is an interactive page, ``.png`` one sheet with a panel per word, ``.gif`` an animation,
                and ``.npz`` the maps as arrays, with a ``.json`` file beside it.
            **options: ``colormap``, ``opacity`` and ``panel_width``, as of :meth:`overlay`.
        """
        path = Path(path)
        suffix = path.suffix.removeprefix(".").lower()
        if suffix not in _FILE_FORMATS:
            choices = ", ".join(f".{name}" for name in _FILE_FORMATS)
            raise CaptioningError(f"{path}: expected a file name that ends in one of {choices}")
        export.OverlayWriter(path.parent, [path], (suffix,), overwrite=True, **options).write(path, self, self._title)

    @property
    def _title(self) -> str:
        return Path(self.image).name if isinstance(self.image, str | os.PathLike) else "image"

    def _render_page(self, image_side: int) -> bytes:
        image = self.open_image(image_side)
        image.thumbnail((image_side, image_side))
        return export.render_page(self._title, image, self)


def _round(value: float) -> float:
    """Four significant digits: small probabilities and weights do not become zero."""
    return float(f"{value:.4g}")
