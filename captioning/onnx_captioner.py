"""Captioning without PyTorch, whose import takes longer than captioning an image.

The first use of a model exports it to the user's cache. Later uses run ONNX Runtime and NumPy only.
"""

import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from captioning import __version__
from captioning.generation import GenerationConfig, Hypothesis, generate
from captioning.models.exported_model import ExportedModel
from captioning.models.pretrained import check_model_exists
from captioning.pipeline import CaptioningPipeline
from captioning.preprocessing.image import ImageTransform
from captioning.utils.user_cache import cached, find_cached

if TYPE_CHECKING:
    from captioning.captioner import Captioner
    from captioning.models.attention import AttentionMode

_EXPORT_VERSION = 1  # to be incremented when the export changes
# Drivers of CUDA on Linux, in WSL and on Windows, and of ROCm.
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", r"C:\Windows\System32\nvcuda.dll", "/dev/kfd")


class OnnxCaptioner(CaptioningPipeline):
    """Generates captions with an exported model, the same ones as :class:`captioning.captioner.Captioner`.

    Args:
        model: the exported model.
        num_return_sequences: number of captions per image.
        **generation: fields of ``GenerationConfig`` that override those of the model. None keeps the value.
    """

    def __init__(self, model: ExportedModel, num_return_sequences: int = 1, **generation: Any) -> None:
        given = {name: value for name, value in generation.items() if value is not None}
        self.model = model
        self.vocabulary, self.calibration = model.vocabulary, model.calibration
        self.num_return_sequences = num_return_sequences
        self.generation = GenerationConfig().replace(**{**model.generation, **given})
        self.generation.check_num_return_sequences(num_return_sequences)
        self.generation.check_effect(given)

    @property
    def transform(self) -> ImageTransform:
        return self.model.transform

    @property
    def grid_size(self) -> tuple[int, int]:
        return self.model.grid_size

    @property
    def receptive_field(self) -> tuple[float, float] | None:
        return self.model.receptive_field

    def generate(self, pixels: np.ndarray) -> list[list[Hypothesis]]:
        features = self.model.encode(pixels)
        return generate(self.model, features, self.generation, None, self.num_return_sequences)


def load_captioner(
    sources: Sequence[str],
    attention_mode: "AttentionMode | None",
    seed: int,
    num_return_sequences: int,
    **generation: Any,
) -> CaptioningPipeline:
    """Load a model without PyTorch if an earlier use has exported it, and otherwise with PyTorch.

    PyTorch runs ensembles, GPUs and everything that is sampled.

    Args:
        sources: names of pretrained models, or paths of model files.
        attention_mode: of hard attention; None selects the default of the model.
        seed: seed of sampling.
        num_return_sequences: number of captions per image.
        **generation: fields of ``GenerationConfig``. None keeps the value of the model.
    """
    options = {"num_return_sequences": num_return_sequences, **generation}
    uses_torch = len(sources) != 1 or generation.get("do_sample") or attention_mode == "sample" or _prefers_torch()
    name = "" if uses_torch else _cache_name(check_model_exists(sources[0]), attention_mode)
    if name and (model := _open(find_cached(name))):
        return OnnxCaptioner(model, **options)

    from captioning.captioner import Captioner

    stored = Captioner.from_pretrained(sources, attention_mode=attention_mode)
    captioner = stored.with_options(seed=seed, **options)
    if name and not stored.is_stochastic:
        cached(name, lambda directory: _export(stored, directory))
    return captioner


def _prefers_torch() -> bool:
    """Whether there is no import of PyTorch to save, or a GPU to use."""
    return "torch" in sys.modules or any(map(os.path.exists, _GPU_FILES))


def _cache_name(path: Path, attention_mode: str | None) -> str:
    """Name of an exported model, with a hash of everything that its content depends on; empty if it cannot be run."""
    try:
        import onnxruntime
    except ImportError:
        return ""
    versions = (_EXPORT_VERSION, __version__, onnxruntime.__version__, attention_mode)
    digest = hashlib.sha256(repr(versions).encode())
    digest.update(path.read_bytes())
    return f"{digest.hexdigest()[:16]}.model"


def _open(directory: Path | None) -> ExportedModel | None:
    if directory is not None:
        with contextlib.suppress(Exception):  # onnxruntime raises many types for a file that is corrupt
            return ExportedModel(directory)
    return None


def _export(captioner: "Captioner", directory: Path) -> None:
    """Export a model. The directory of one that cannot be exported is empty, so that it is not tried again."""
    try:
        captioner.export(directory, use_cache=True)
    except Exception:  # the exporter raises many types for layers that it does not support
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
