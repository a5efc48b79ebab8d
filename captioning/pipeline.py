"""From images to captions, around a model that subclasses run in PyTorch or in ONNX Runtime."""

import dataclasses
import io
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from captioning.caption import Caption
from captioning.generation.hypothesis import Hypothesis
from captioning.models.calibration import Calibration
from captioning.preprocessing.image import ImageInput, ImageTransform, check_image_type, is_image
from captioning.preprocessing.preprocessed_image import PreprocessedImage, preprocess_image
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError
from captioning.utils.prefetch import prefetch_batches


class CaptioningPipeline(ABC):
    """Reads images, has a subclass generate captions in token ids, and converts these to captions."""

    vocabulary: Vocabulary
    calibration: Calibration | None

    @property
    @abstractmethod
    def transform(self) -> ImageTransform:
        """Transform from an image to the input of the CNN."""

    @property
    @abstractmethod
    def grid_size(self) -> tuple[int, int]:
        """Rows and columns of the attention maps."""

    @property
    @abstractmethod
    def receptive_field(self) -> tuple[float, float] | None:
        """Width and height of the receptive field of a location in fractions of the input, if each word attends to a
        single location."""

    @abstractmethod
    def generate(self, pixels: np.ndarray) -> list[list[Hypothesis]]:
        """Caption the images with pixels (B, 3, S, S): for each, one or several hypotheses, best first."""

    def iter_captions(self, images: Iterable[ImageInput], batch_size: int = 32) -> Iterator[Caption | CaptioningError]:
        """Yield captions in the order of the images. An image that cannot be read yields its error.

        Only two batches are in memory at a time, so the images may be a generator.
        """
        if is_image(images):
            raise CaptioningError(f"expected an iterable of images, got one image ({type(images).__name__})")
        if not isinstance(images, Iterable) or isinstance(images, Mapping | bytearray | memoryview | io.IOBase):
            check_image_type(images)
        if not isinstance(batch_size, int) or batch_size < 1:
            raise CaptioningError(f"batch_size must be >= 1, got {batch_size!r}")
        for results in prefetch_batches(self._preprocess_or_error, images, batch_size):
            captions = iter(self.caption_batch([item for item in results if isinstance(item, PreprocessedImage)]))
            for result in results:
                yield next(captions) if isinstance(result, PreprocessedImage) else result

    def _preprocess_or_error(self, image: ImageInput) -> PreprocessedImage | CaptioningError:
        try:
            return self.preprocess(image)
        except CaptioningError as error:
            return error

    def preprocess(self, image: ImageInput, max_pixels: float = math.inf) -> PreprocessedImage:
        """Open and transform an image for :meth:`caption_batch`. Thread-safe.

        Args:
            image: a path, an http(s) URL, the bytes of a file, a PIL image, a NumPy array or a torch tensor.
            max_pixels: a file with more pixels raises CaptioningError before it is decoded.
        """
        return preprocess_image(image, self.transform, max_pixels)

    def caption_batch(self, images: Sequence[PreprocessedImage]) -> list[Caption]:
        """Caption one batch. Not thread-safe."""
        if not images:
            return []
        results = self.generate(np.stack([image.pixels for image in images]))
        captions = []
        for image, hypotheses in zip(images, results, strict=True):
            best, *alternatives = (self._to_caption(hypothesis, image) for hypothesis in hypotheses)
            captions.append(dataclasses.replace(best, alternatives=tuple(alternatives)))
        return captions

    def _to_caption(self, hypothesis: Hypothesis, image: PreprocessedImage) -> Caption:
        box, field = image.crop_box, self.receptive_field
        if field is not None:
            field = (field[0] * (box.right - box.left), field[1] * (box.bottom - box.top))
        return Caption(
            words=self.vocabulary.decode(hypothesis.token_ids),
            token_probs=[math.exp(log_prob) for log_prob in hypothesis.log_probs],
            attention_maps=np.asarray(hypothesis.attention_weights).reshape(-1, *self.grid_size),
            image=image.source,
            crop_box=box,
            receptive_field=field,
            context_gates=hypothesis.context_gates,
            preview=image.preview,
            calibration=self.calibration,
            resembles_photo=image.resembles_photo,
        )
