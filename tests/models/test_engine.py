import importlib.util
from pathlib import Path

import onnx
import pytest
import torch

from captioning.models import engine
from captioning.models.encoder import Encoder, FeatureExtractor
from captioning.models.engine import OnnxEngine, inference_engine


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an engine that exports small encoders as well."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(engine, "_MIN_PARAMETERS", 0)
    return tmp_path / "captioning"


def make_encoder() -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder("tiny", image_size=32, pca_components=5)
    for tensor in encoder.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5)
    return encoder


def features_of(extractor: FeatureExtractor, pixels: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return extractor(pixels)


@pytest.mark.parametrize("num_images", [1, 8, 19])
def test_features_equal_those_of_pytorch(cache_dir: Path, num_images: int) -> None:
    encoder = make_encoder()
    extract = inference_engine(encoder)
    assert isinstance(extract, OnnxEngine)
    pixels = torch.randn(num_images, 3, 32, 32)
    expected = features_of(encoder, pixels)
    torch.testing.assert_close(extract(pixels), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_cnn_with_dilation_can_be_exported(cache_dir: Path) -> None:
    encoder = Encoder("efficientnet_lite0", image_size=64, output_stride=16)
    extract = inference_engine(encoder)
    assert isinstance(extract, OnnxEngine)
    assert extract(torch.zeros(1, 3, 64, 64)).shape == (1, 16, 1280)


def test_the_cnn_is_exported_once(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inference_engine(make_encoder())
    (file,) = cache_dir.iterdir()
    monkeypatch.setattr(engine, "_build", lambda *arguments: pytest.fail("exported again"))
    assert isinstance(inference_engine(make_encoder()), OnnxEngine)
    assert list(cache_dir.iterdir()) == [file]


def test_other_weights_have_another_file(cache_dir: Path) -> None:
    encoder = make_encoder()
    inference_engine(encoder)
    with torch.no_grad():
        next(encoder.parameters()).add_(0.1)
    pixels = torch.randn(2, 3, 32, 32)
    expected = features_of(encoder, pixels)
    features = inference_engine(encoder)(pixels)
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert len(list(cache_dir.iterdir())) == 2


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_pytorch_is_used_without_onnx_runtime(cache_dir: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find_spec(name))
    assert isinstance(inference_engine(make_encoder()), FeatureExtractor)
    assert not cache_dir.exists()


def test_pytorch_is_used_if_the_cache_cannot_be_written(cache_dir: Path) -> None:
    cache_dir.write_text("a file instead of the directory")
    assert isinstance(inference_engine(make_encoder()), FeatureExtractor)


def test_pytorch_is_used_if_the_cached_file_is_corrupt(cache_dir: Path) -> None:
    inference_engine(make_encoder())
    (file,) = cache_dir.iterdir()
    file.write_bytes(b"corrupt")
    assert isinstance(inference_engine(make_encoder()), FeatureExtractor)


def test_pytorch_is_used_if_the_export_differs(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "TOLERANCE", -1)
    assert isinstance(inference_engine(make_encoder()), FeatureExtractor)
    assert not list(cache_dir.iterdir())


def test_small_encoders_stay_in_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert isinstance(inference_engine(make_encoder()), FeatureExtractor)


def test_padding_of_timm_is_part_of_the_convolutions(cache_dir: Path) -> None:
    encoder = Encoder("efficientnet_lite0", image_size=64)
    inference_engine(encoder)
    (file,) = cache_dir.iterdir()
    assert "Pad" not in {node.op_type for node in onnx.load(file).graph.node}
