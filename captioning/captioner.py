"""Python API: loads a model and captions images."""

import dataclasses
import functools
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, Unpack, overload

import numpy as np
import torch

from captioning.caption import Caption
from captioning.generation import GenerationConfig, Hypothesis, generate
from captioning.generation.options import CallOptions, CaptionOptions
from captioning.models import checkpoint
from captioning.models.attention import AttentionMode, check_attention_mode, make_attention_fn
from captioning.models.calibration import Calibration
from captioning.models.decoder import Decoder
from captioning.models.encoder import Encoder, FeatureExtractor
from captioning.models.engine import OnnxEngine, inference_engine
from captioning.models.ensemble import EnsembleDecoder
from captioning.models.loading import load_model, resolve_device
from captioning.models.pretrained import DEFAULT_MODEL
from captioning.models.receptive_field import receptive_field
from captioning.pipeline import CaptioningPipeline
from captioning.preprocessing.image import ImageInput, ImageTransform, is_image
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError
from captioning.utils.fork_safety import check_not_forked
from captioning.visualization.export import OverlayWriter, name_images

ErrorMode = Literal["raise", "return"]


class Captioner(CaptioningPipeline):
    """Generates captions of images. Instances can be pickled.

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
        calibration: maps the score of a caption to its confidence.
        **generation: fields of :class:`captioning.generation.GenerationConfig`.
    """

    def __init__(
        self,
        encoder: FeatureExtractor,
        decoder: Decoder | EnsembleDecoder,
        vocabulary: Vocabulary,
        attention_mode: AttentionMode | None = None,
        seed: int = 0,
        num_return_sequences: int = 1,
        calibration: Calibration | None = None,
        **generation: Any,
    ) -> None:
        self.encoder = encoder.eval()
        self.decoder = decoder.eval()
        self.vocabulary = vocabulary
        self.calibration = calibration
        self._prepare_encoder()
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._configure(attention_mode, num_return_sequences, GenerationConfig().replace(**generation))

    def _prepare_encoder(self) -> None:
        self._extract_features = inference_engine(self.encoder)
        self._receptive_field = functools.cache(functools.partial(receptive_field, self.encoder))

    def _configure(
        self, attention_mode: AttentionMode | None, num_return_sequences: int, generation: GenerationConfig
    ) -> None:
        check_attention_mode(attention_mode, self.decoder.is_hard)
        generation.check_num_return_sequences(num_return_sequences)
        self.attention_mode = attention_mode
        self.num_return_sequences = num_return_sequences
        self.generation = generation

    @classmethod
    def from_pretrained(
        cls,
        model: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = DEFAULT_MODEL,
        device: str | torch.device | None = None,
        **options: Unpack[CaptionOptions],
    ) -> Self:
        """Load a model file. Loading does not execute code from the file.

        Args:
            model: name of a pretrained model (:func:`captioning.list_pretrained`), or path of a ``.safetensors`` file
                or training checkpoint. Several models with the same vocabulary form an ensemble, which averages their
                next-word probabilities and attention maps.
            device: by default ``cuda`` if available, otherwise ``cpu``.
            **options: options that override those in the file: ``attention_mode``, ``num_return_sequences``, ``seed``
                and the fields of :class:`captioning.generation.GenerationConfig`. None keeps the value of the file.
        """
        device = resolve_device(device)
        sources = [model] if isinstance(model, str | os.PathLike) else list(model)
        loaded = load_model([source if isinstance(source, str) else Path(source) for source in sources], device)
        stored = {**loaded.generation, "attention_mode": loaded.attention_mode, "calibration": loaded.calibration}
        given = _without_none(options)
        captioner = cls(loaded.encoder, loaded.decoder, loaded.vocabulary, **{**stored, **given})
        captioner.generation.check_effect(given)
        return captioner

    def save(self, path: str | os.PathLike[str], compact: bool = False) -> None:
        """Write a model file.

        Args:
            path: path of the file.
            compact: store half precision, and only those encoder tensors that differ from the pretrained weights.
        """
        encoder, decoder = self.single_model()
        header = checkpoint.build_model_header(
            encoder,
            decoder,
            self.vocabulary,
            dataclasses.asdict(self.generation),
            self.attention_mode,
            self.calibration,
        )
        checkpoint.save_model(Path(path), header, encoder, decoder, compact)

    def export(self, output_dir: str | os.PathLike[str], use_cache: bool = False) -> float:
        """Write the model as ONNX files, see docs/export.md.

        Args:
            output_dir: created if it does not exist.
            use_cache: link to the CNN that the inference engine has cached, and optimize the decoder as well, for the
                installed version of ONNX Runtime.

        Returns:
            The maximum deviation from PyTorch of features, log-probabilities and attention weights.
        """
        from captioning.models.onnx_model import export_model

        encoder, decoder = self.single_model()
        engine = self._extract_features
        return export_model(
            encoder,
            decoder,
            self.vocabulary,
            Path(output_dir),
            generation=dataclasses.asdict(self.generation),
            attention_mode=self.attention_mode,
            calibration=self.calibration,
            receptive_field=self.receptive_field,
            cached_cnn=engine.encoder.path if use_cache and isinstance(engine, OnnxEngine) else None,
        )

    def single_model(self) -> tuple[Encoder, Decoder]:
        """Return the encoder and the decoder. Raises CaptioningError for an ensemble."""
        if not isinstance(self.encoder, Encoder) or not isinstance(self.decoder, Decoder):
            raise CaptioningError("this is not possible with an ensemble; load one of its models alone")
        return self.encoder, self.decoder

    @property
    def device(self) -> torch.device:
        return next(self.decoder.parameters()).device

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device and return this captioner. Sampling continues from the initial seed."""
        device = resolve_device(device)
        for module in (self.encoder, self.decoder):
            module.to(device)
        self._prepare_encoder()
        self.generator = torch.Generator(device).manual_seed(self.generator.initial_seed())
        return self

    def with_options(self, **options: Unpack[CaptionOptions]) -> Self:
        """Return a captioner with other options that shares the modules of this one.

        Args:
            **options: as for :meth:`from_pretrained`. Options that are omitted or None keep their value. A ``seed``
                starts a new random generator; otherwise the generator is shared as well.
        """
        changed = _without_none(options)
        seed = changed.pop("seed", None)
        captioner = self.__class__.__new__(self.__class__)  # not copy.copy(), which would fuse the encoder again
        captioner.__dict__.update(self.__dict__)
        attention_mode = changed.pop("attention_mode", self.attention_mode)
        num_return_sequences = changed.pop("num_return_sequences", self.num_return_sequences)
        generation = self.generation.replace(**changed)
        generation.check_effect(changed)
        captioner._configure(attention_mode, num_return_sequences, generation)
        if seed is not None:
            captioner.generator = torch.Generator(self.device).manual_seed(seed)
        return captioner

    @property
    def is_stochastic(self) -> bool:
        """Whether captions depend on the seed, and on the other images of the batch."""
        return self.generation.do_sample or self.attention_mode == "sample"

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to pickle: without the inference engine, and with the generator as its state."""
        state = {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("_extract_features", "_receptive_field")
        }
        return {**state, "generator": self.generator.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare_encoder()
        self.generator = torch.Generator(self.device)
        self.generator.set_state(state["generator"])

    # The overloads overlap: a path is an image, although a string is also an iterable of strings.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, images: ImageInput, *, errors: Literal["raise"] = ..., **options: Unpack[CallOptions]
    ) -> Caption: ...

    @overload
    def __call__(
        self, images: Iterable[ImageInput], *, errors: Literal["raise"] = ..., **options: Unpack[CallOptions]
    ) -> list[Caption]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, images: ImageInput, *, errors: Literal["return"], **options: Unpack[CallOptions]
    ) -> Caption | CaptioningError: ...

    @overload
    def __call__(
        self, images: Iterable[ImageInput], *, errors: Literal["return"], **options: Unpack[CallOptions]
    ) -> list[Caption | CaptioningError]: ...

    def __call__(
        self,
        images: ImageInput | Iterable[ImageInput],
        *,
        batch_size: int = 32,
        errors: ErrorMode = "raise",
        **options: Unpack[CaptionOptions],
    ) -> Caption | CaptioningError | Sequence[Caption | CaptioningError]:
        """Caption an image, or an iterable of images.

        Args:
            images: a path, an http(s) URL, the bytes of a file, a PIL image, a NumPy array (H, W, C), a torch tensor
                (C, H, W), or an iterable of these, which yields a list.
            batch_size: number of images that the model processes at once.
            errors: ``raise`` raises the error of an image that cannot be read, ``return`` returns it in the place of
                the caption.
            **options: arguments of :meth:`with_options` for this call.
        """
        if errors not in ("raise", "return"):
            raise CaptioningError(f"errors must be 'raise' or 'return', got {errors!r}")
        captioner = self.with_options(**options) if options else self
        is_single, results = is_image(images), []
        for result in captioner.iter_captions(_as_iterable(images), batch_size):
            if errors == "raise" and isinstance(result, CaptioningError):
                raise result
            results.append(result)
        return results[0] if is_single else results

    def gallery(
        self,
        images: ImageInput | Iterable[ImageInput],
        output_dir: str | os.PathLike[str],
        formats: str | Sequence[str] = ("html",),
        batch_size: int = 32,
        **overlay_options: Any,
    ) -> Path:
        """Caption images and write their attention overlays to a directory, with an index page of all.

        An image that cannot be read is skipped with a warning.

        Args:
            images: as for a call.
            output_dir: created if it does not exist.
            formats: see :class:`captioning.visualization.export.OverlayWriter`.
            batch_size: number of images that the model processes at once.
            **overlay_options: ``colormap``, ``opacity`` and ``panel_width``, as of :meth:`Caption.overlay`.

        Returns:
            Path of the index page.
        """
        images = list(_as_iterable(images))
        formats = [formats] if isinstance(formats, str) else formats
        paths = name_images(images)
        writer = OverlayWriter(Path(output_dir), paths, formats, has_gallery=True, **overlay_options)
        for path, result in zip(paths, self.iter_captions(images, batch_size), strict=True):
            if isinstance(result, CaptioningError):
                warnings.warn(str(result), stacklevel=2)
            else:
                writer.write(path, result)
        return writer.close() or writer.output_dir

    @property
    def transform(self) -> ImageTransform:
        return self.encoder.transform

    @property
    def grid_size(self) -> tuple[int, int]:
        return self.encoder.grid_size

    @property
    def receptive_field(self) -> tuple[float, float] | None:
        # Computed only where it is used: it requires a forward and a backward pass of the CNN.
        is_single = isinstance(self.decoder, Decoder) and self.decoder.is_hard and self.attention_mode != "expectation"
        return self._receptive_field() if is_single else None

    def generate(self, pixels: np.ndarray) -> list[list[Hypothesis]]:
        check_not_forked()
        with torch.inference_mode():
            features = self._extract_features(torch.from_numpy(pixels).to(self.device))  # (B, L, D)
        attention_fn = make_attention_fn(self.attention_mode, self.generator)
        return generate(
            self.decoder, features, self.generation, self.generator, self.num_return_sequences, attention_fn
        )


def _as_iterable(images: ImageInput | Iterable[ImageInput]) -> Iterable[ImageInput]:
    return [images] if is_image(images) else images


def _without_none(options: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
