"""Backbones of timm with random weights: shapes, spatial correspondence, and the model file."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from captioning.models.checkpoint import build_model_header, build_modules, read_model, write_model_file
from captioning.models.decoder import Decoder
from captioning.models.encoder import Encoder
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError

# The smallest variants of ten families: name, image size, expected stride and channels.
FAMILIES = [
    ("resnet10t", 128, 32, 512),
    ("vgg11", 64, 32, 512),
    ("mobilenetv3_small_050", 256, 32, 288),
    ("efficientnet_b0", 128, 32, 320),
    ("regnetx_002", 128, 32, 368),
    ("convnext_atto", 128, 32, 320),
    ("swin_tiny_patch4_window7_224", 128, 32, 768),  # NHWC feature maps
    ("vit_tiny_patch16_224", 64, 16, 192),
    ("vit_small_patch14_reg4_dinov2", 56, 14, 384),  # class and register tokens
    ("vit_base_patch32_clip_224", 128, 32, 768),
    ("eva02_tiny_patch14_224", 56, 14, 192),  # rotary position embedding
]


def make_encoder(name: str, **options: Any) -> Encoder:
    torch.manual_seed(0)
    return Encoder(f"timm/{name}", **options)


def random_pixels(size: int, count: int = 1) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "size", "stride", "feature_size"), FAMILIES)
def test_family(tmp_path: Path, name: str, size: int, stride: int, feature_size: int) -> None:
    encoder = make_encoder(name, image_size=size)
    rows, columns = encoder.grid_size
    assert (rows, columns) == (size // stride, size // stride)
    assert encoder.feature_size == feature_size
    pixels = random_pixels(size)
    features = encoder(pixels)
    assert features.shape == (1, rows * columns, feature_size)
    assert features.isfinite().all()
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    torch.testing.assert_close(encoder.for_inference()(pixels), features)
    check_spatial_correspondence(encoder, stride)
    check_round_trip(tmp_path / "model.safetensors", encoder, pixels)


def check_spatial_correspondence(encoder: Encoder, stride: int) -> None:
    """A patch painted on a cell of the image changes the features of this cell most, on average over images."""
    calibrate_batchnorm(encoder)
    rows, columns = encoder.grid_size
    pixels = random_pixels(encoder.transform.image_size, count=4)
    for row, column in ((rows // 2, columns // 2), (rows // 2 - 1, columns // 2)):
        painted = pixels.clone()
        painted[..., row * stride : (row + 1) * stride, column * stride : (column + 1) * stride] += 2.0
        change = torch.zeros(rows, columns)
        # Padded convolutions of stride 2 shift receptive fields by half a cell to the top left. Flips cancel the shift.
        for flip in ([], [-1], [-2], [-2, -1]):
            difference = encoder(painted.flip(flip)) - encoder(pixels.flip(flip))  # (B, L, D)
            change += difference.norm(dim=-1).mean(0).unflatten(0, (rows, columns)).flip(flip)
        assert int(change.argmax()) == row * columns + column


def calibrate_batchnorm(encoder: Encoder) -> None:
    """Set running statistics from noise. With the initial ones, activations of random networks vanish with depth."""
    norms = [module for module in encoder.modules() if isinstance(module, nn.BatchNorm2d)]
    for module in norms:
        module.momentum = 1.0
        module.train()
    with torch.no_grad():
        encoder(random_pixels(encoder.transform.image_size, count=8))
    encoder.eval()


def check_round_trip(path: Path, encoder: Encoder, pixels: Tensor) -> None:
    vocabulary = Vocabulary([*Vocabulary.SPECIAL_TOKENS, "a"])
    rows, columns = encoder.grid_size
    decoder = Decoder(len(vocabulary), encoder.feature_size, rows * columns, embedding_size=4, hidden_size=4)
    header = build_model_header(encoder, decoder, vocabulary, {}, None)
    parts = {"encoder": encoder, "decoder": decoder}
    tensors = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
    write_model_file(path, header, tensors)
    loaded, _, _ = build_modules(read_model(path))
    assert loaded.config == encoder.config
    assert loaded.transform == encoder.transform
    assert not [tensor for tensor in [*loaded.parameters(), *loaded.buffers()] if tensor.is_meta]
    expected = encoder(pixels)
    torch.testing.assert_close(loaded(pixels), expected, atol=1e-5 * expected.abs().max().item(), rtol=1e-4)


def test_transform_comes_from_the_tables_of_timm() -> None:
    clip = make_encoder("vit_base_patch32_clip_224.openai", image_size=32).transform
    assert clip.mean == pytest.approx((0.4815, 0.4578, 0.4082), abs=1e-4)
    assert clip.interpolation == "bicubic"
    resnet = make_encoder("resnet10t")
    assert resnet.transform.mean == (0.485, 0.456, 0.406)
    assert resnet.transform.image_size == 192, "176 pixels, rounded to a multiple of the stride"
    assert resnet.config["image_size"] == 192


@pytest.mark.parametrize("output_stride", [8, 16, 32])
def test_output_stride(tmp_path: Path, output_stride: int) -> None:
    encoder = make_encoder("resnet10t", image_size=64, output_stride=output_stride)
    assert encoder.grid_size == (64 // output_stride, 64 // output_stride)
    check_round_trip(tmp_path / "model.safetensors", encoder, random_pixels(64))


def test_features_of_a_vit_are_its_normalized_patch_tokens() -> None:
    encoder = make_encoder("vit_tiny_patch16_224", image_size=64)
    pixels = random_pixels(64, count=2)
    model: Any = encoder.backbone.model
    torch.testing.assert_close(encoder(pixels), model.forward_features(pixels)[:, 1:])  # without the class token


def test_unfrozen_encoder_gets_gradients() -> None:
    """Parameters without gradients would stop distributed training."""
    for name in ("resnet10t", "vit_tiny_patch16_224", "vit_base_patch16_siglip_224"):
        encoder = make_encoder(name, image_size=64, frozen=False)
        assert encoder.training
        encoder(random_pixels(64, count=2)).square().sum().backward()
        assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_blocks() -> None:
    """A backbone of timm counts as one block."""
    encoder = make_encoder("resnet10t", image_size=64)
    pixels = random_pixels(64)
    features = encoder.forward_tail(encoder.frozen_trunk(1)(pixels), 1)
    torch.testing.assert_close(features, encoder(pixels))
    assert encoder.unfreeze(0)
    with pytest.raises(CaptioningError, match="'timm/resnet10t' has 1 blocks; set it to 0 for all"):
        encoder.unfreeze(2)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224"])
def test_weights_from_a_file(tmp_path: Path, name: str, suffix: str) -> None:
    """The file contains the state dict of the whole model, as timm publishes it."""
    import timm

    torch.manual_seed(1)
    state_dict = timm.create_model(name).state_dict()
    path = tmp_path / f"weights{suffix}"
    (torch.save if suffix == ".pth" else save_file)(state_dict, path)
    encoder = make_encoder(name, image_size=64, weights=str(path))
    loaded = {key.removeprefix("model."): tensor for key, tensor in encoder.backbone.state_dict().items()}
    assert loaded
    for key, tensor in loaded.items():
        if key != "pos_embed":  # resampled to the image size
            assert torch.equal(tensor, state_dict[key]), key
    assert not [module for module in encoder.modules() if "state_dict" in getattr(module, "pretrained_cfg", {})]


def test_pretrained_weights_come_from_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The download itself is replaced."""
    import timm

    state_dict = timm.create_model("resnet10t").state_dict()
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", lambda *_, **__: dict(state_dict))
    encoder = make_encoder("resnet10t", image_size=64, weights="pretrained")
    assert torch.equal(encoder.backbone.model.conv1[0].weight, state_dict["conv1.0.weight"])

    def fail(*_: object, **__: object) -> None:
        raise OSError("no route\nsecond line")

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", fail)
    message = r"'timm/resnet10t' cannot be downloaded \(no route\); set weights to a local file$"
    with pytest.raises(CaptioningError, match=message):
        make_encoder("resnet10t", image_size=64, weights="pretrained")


def test_errors_are_one_line(tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(1)}, tmp_path / "foreign.pth")
    for name, options, message in (
        ("resnet10x", {}, "unknown backbone 'timm/resnet10x'; nearest matches: timm/resnet10t, "),
        ("resnet10t.c3_in1", {}, "unknown backbone .* nearest matches: timm/resnet10t.c3_in1k, "),
        ("§", {}, "nearest matches: none"),
        ("resnet10t", {"image_size": 50}, "image_size 50 is not a multiple of 32.* set it to 64"),
        ("vit_tiny_patch16_224", {"output_stride": 8}, "yields no feature grid with output_stride 8"),
        ("inception_v3", {"image_size": 32}, "'timm/inception_v3' cannot process images of size 32"),
        ("resnet10t", {"weights": "missing.pth"}, "missing.pth: weights file not found"),
        ("resnet10t", {"weights": str(tmp_path / "foreign.pth")}, "not a state dict of 'timm/resnet10t' .*missing"),
    ):
        with pytest.raises(CaptioningError, match=message) as caught:
            make_encoder(name, **options)
        assert "\n" not in str(caught.value)


def test_timm_is_imported_lazily() -> None:
    script = "import sys, captioning.models.encoder, captioning.models.checkpoint; assert 'timm' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
