"""Python API: loads a model and captions images."""

import copy
import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from captioning.caption import Caption
from captioning.generation import GenerationConfig, Hypothesis, generate
from captioning.models import checkpoint
from captioning.models.attention import AttentionMode, check_attention_mode, make_attention_fn
from captioning.models.decoder import Decoder
from captioning.models.encoder import Encoder
from captioning.models.engine import inference_engine
from captioning.models.pretrained import DEFAULT_MODEL
from captioning.models.receptive_field import receptive_field
from captioning.preprocessing.image import Box, ImageInput, open_image
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError
from captioning.utils.prefetch import prefetch_batches


class PreprocessedImage(NamedTuple):
    """An image that is opened, resized and normalized."""

    source: ImageInput
    pixels: Tensor  # (3, image_size, image_size)
    crop_box: Box


class Captioner:
    """Generates captions of images.

    >>> captioner = Captioner.from_pretrained()
    >>> captioner("photo.jpg").text

    Args:
        encoder: computes features (B, L, D) from images.
        decoder: generates token ids from features.
        vocabulary: maps token ids to words.
        attention_mode: hard attention at inference: ``argmax`` uses the most probable location, ``sample`` draws one,
            ``expectation`` averages all locations by their attention weights.
        seed: seed of sampling. The same images in the same batches yield the same captions.
        num_return_sequences: number of captions per image.
        **generation: fields of :class:`captioning.generation.GenerationConfig`.
    """

    def __init__(
        self,
        encoder: Encoder,
        decoder: Decoder,
        vocabulary: Vocabulary,
        attention_mode: AttentionMode | None = None,
        seed: int = 0,
        num_return_sequences: int = 1,
        **generation: Any,
    ) -> None:
        self.encoder = encoder.eval()
        self._extract_features = inference_engine(self.encoder)
        self._receptive_field = functools.cache(functools.partial(receptive_field, self.encoder))
        self.decoder = decoder.eval()
        self.vocabulary = vocabulary
        self._configure(attention_mode, seed, num_return_sequences, GenerationConfig(**generation))

    def _configure(
        self, attention_mode: AttentionMode | None, seed: int, num_return_sequences: int, generation: GenerationConfig
    ) -> None:
        check_attention_mode(attention_mode, self.decoder.is_hard)
        generation.check_num_return_sequences(num_return_sequences)
        self.attention_mode = attention_mode
        self.num_return_sequences = num_return_sequences
        self.generation = generation
        self.generator = torch.Generator(self._device).manual_seed(seed)

    @property
    def _device(self) -> torch.device:
        return next(self.decoder.parameters()).device

    def with_options(self, seed: int = 0, **options: Any) -> "Captioner":
        """Return a captioner with other options that shares the modules of this one.

        Args:
            seed: seed of the new random generator.
            **options: arguments of the class. Options that are omitted or None keep their value.
        """
        changed = _without_none(options)
        captioner = copy.copy(self)
        attention_mode = changed.pop("attention_mode", self.attention_mode)
        num_return_sequences = changed.pop("num_return_sequences", self.num_return_sequences)
        generation = dataclasses.replace(self.generation, **changed)
        generation.check_effect(changed)
        captioner._configure(attention_mode, seed, num_return_sequences, generation)
        return captioner

    @property
    def is_stochastic(self) -> bool:
        """Whether captions depend on the seed, and on the other images of the batch."""
        return self.generation.do_sample or self.attention_mode == "sample"

    @classmethod
    def from_pretrained(
        cls, model: str | Path = DEFAULT_MODEL, device: str | None = None, **options: Any
    ) -> "Captioner":
        """Load a model file. Loading does not execute code from the file.

        Args:
            model: name of a bundled model, or path of a ``.safetensors`` file or training checkpoint.
            device: by default ``cuda`` if available, otherwise ``cpu``.
            **options: arguments of the class that override those in the file. None keeps the value of the file.
        """
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        model_file = checkpoint.read_model(model, device)
        encoder, decoder, vocabulary = checkpoint.build_modules(model_file, device)
        stored = {**model_file.header["generation"], "attention_mode": model_file.header["attention_mode"]}
        options = _without_none(options)
        captioner = cls(encoder, decoder, vocabulary, **{**stored, **options})
        captioner.generation.check_effect(options)
        return captioner

    def save(self, path: str | Path, compact: bool = False) -> None:
        """Write a model file.

        Args:
            path: path of the file.
            compact: store half precision, and only those encoder tensors that differ from the pretrained weights.
        """
        header = checkpoint.build_model_header(
            self.encoder, self.decoder, self.vocabulary, dataclasses.asdict(self.generation), self.attention_mode
        )
        modules = {"encoder": self.encoder, "decoder": self.decoder}
        tensors = {
            f"{prefix}.{name}": tensor
            for prefix, module in modules.items()
            for name, tensor in module.state_dict().items()
        }
        model_file = checkpoint.ModelFile(header, tensors)
        if compact:
            model_file = checkpoint.compact(model_file)
        checkpoint.write_model_file(Path(path), model_file.header, model_file.tensors)

    @overload
    def __call__(self, images: ImageInput) -> Caption: ...

    @overload
    def __call__(self, images: list[ImageInput]) -> list[Caption]: ...

    def __call__(self, images: ImageInput | list[ImageInput]) -> Caption | list[Caption]:
        """Caption an image (path, bytes or PIL image) or a list of images."""
        captions = []
        for caption in self.iter_captions(images if isinstance(images, list) else [images]):
            if isinstance(caption, CaptioningError):
                raise caption
            captions.append(caption)
        return captions if isinstance(images, list) else captions[0]

    def iter_captions(self, images: Iterable[ImageInput], batch_size: int = 32) -> Iterator[Caption | CaptioningError]:
        """Yield captions in the order of the images. An image that cannot be read yields its error."""
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
            image: path, bytes or PIL image.
            max_pixels: a file with more pixels raises CaptioningError before it is decoded.
        """
        transform = self.encoder.transform
        opened = open_image(image, transform.image_size, max_pixels)
        return PreprocessedImage(image, transform(opened), transform.crop_box(*opened.size))

    def caption_batch(self, images: Sequence[PreprocessedImage]) -> list[Caption]:
        """Caption one batch. Not thread-safe."""
        if not images:
            return []
        pixels = torch.stack([image.pixels for image in images])  # (B, 3, image_size, image_size)
        with torch.inference_mode():
            features = self._extract_features(pixels.to(self._device))  # (B, L, D)
        attention_fn = make_attention_fn(self.attention_mode, self.generator)
        results = generate(
            self.decoder, features, self.generation, self.generator, self.num_return_sequences, attention_fn
        )
        captions = []
        for image, hypotheses in zip(images, results, strict=True):
            best, *alternatives = (self._postprocess(hypothesis, image) for hypothesis in hypotheses)
            captions.append(dataclasses.replace(best, alternatives=tuple(alternatives)))
        return captions

    def _postprocess(self, hypothesis: Hypothesis, image: PreprocessedImage) -> Caption:
        box, field = image.crop_box, None
        # The receptive field is computed only where it is used: it requires a forward and a backward pass of the CNN.
        if self.decoder.is_hard and self.attention_mode != "expectation":
            width, height = self._receptive_field()
            field = (width * (box.right - box.left), height * (box.bottom - box.top))
        return Caption(
            words=self.vocabulary.decode(hypothesis.token_ids),
            token_probs=[math.exp(log_prob) for log_prob in hypothesis.log_probs],
            attention_maps=hypothesis.attention_weights.unflatten(1, self.encoder.grid_size).numpy(),
            image=image.source,
            crop_box=box,
            receptive_field=field,
            context_gates=hypothesis.context_gates,
        )


def _without_none(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
