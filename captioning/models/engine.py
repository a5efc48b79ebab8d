"""Inference engine of encoders: ONNX Runtime on the CPU where it is installed, otherwise PyTorch.

ONNX Runtime takes about half of PyTorch's time for the same CNN. The exported CNN is built once, and cached under a
fingerprint of the encoder (see :mod:`captioning.utils.user_cache`).
"""

import contextlib
import hashlib
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from captioning.models.encoder import FeatureExtractor
from captioning.models.exported_model import OnnxEncoder, create_session
from captioning.utils.user_cache import BuildError, cached

_EXPORT_VERSION = 2  # to be incremented when the export changes
_MIN_PARAMETERS = 1_000_000  # a smaller CNN takes less time than its export
TOLERANCE = 1e-4  # relative to the largest value for features, absolute for log-probabilities and attention weights

FeatureFn = Callable[[Tensor], Tensor]


class OnnxEngine:
    """Maps pixels (B, 3, S, S) to features (B, L, D), as tensors, in ONNX Runtime. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.encoder = OnnxEncoder(path)

    def __call__(self, pixels: Tensor) -> Tensor:
        return torch.from_numpy(self.encoder(pixels.numpy()))


def inference_engine(extractor: FeatureExtractor) -> FeatureFn:
    """Return the fastest function for inference that maps pixels (B, 3, S, S) to features (B, L, D).

    The features are those of the extractor to 1e-4. The function is independent of later changes of its weights.
    """
    parameters = list(extractor.parameters())
    is_large = sum(parameter.numel() for parameter in parameters) >= _MIN_PARAMETERS
    if is_large and parameters[0].device.type == "cpu" and _is_onnx_installed():
        path = cached(f"{_fingerprint(extractor)}.onnx", lambda path: _build(extractor, path))
        if path is not None:
            with contextlib.suppress(Exception):  # onnxruntime raises many types for a file that is corrupt
                return OnnxEngine(path)
    return extractor.for_inference()


def _is_onnx_installed() -> bool:
    return all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))


def _fingerprint(extractor: FeatureExtractor) -> str:
    """Hash of the weights and the structure of an encoder."""
    import onnxruntime

    versions = (_EXPORT_VERSION, torch.__version__, onnxruntime.__version__)
    digest = hashlib.sha256(repr((versions, extractor.config, extractor)).encode())
    for name, tensor in extractor.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def _build(extractor: FeatureExtractor, path: Path) -> None:
    """Export an encoder, optimize the graph and compare its features with those of PyTorch."""
    from captioning.models.onnx_export import export_encoder

    encoder = extractor.for_inference()
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as directory:
            exported = Path(directory) / "encoder.onnx"
            export_encoder(encoder, exported)
            create_session(exported, optimized_path=path)
        deviation = max_deviation(encoder, OnnxEngine(path))
    except Exception as error:  # not every layer can be exported; PyTorch is used instead
        raise BuildError from error
    if not deviation <= TOLERANCE:
        raise BuildError


def max_deviation(encoder: FeatureExtractor, engine: FeatureFn) -> float:
    """Maximum difference of the features of noise images, relative to the largest feature."""
    size = encoder.transform.image_size
    pixels = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = encoder(pixels)
    return float((engine(pixels) - expected).abs().max() / expected.abs().max())
