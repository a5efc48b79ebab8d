"""Operations on backbones: truncation at a layer, splitting before the last blocks, and Conv-BatchNorm fusion."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.nn.utils.memory_format import convert_conv2d_weight_memory_format
from torch.overrides import TorchFunctionMode


class Backbone(NamedTuple):
    """A network that maps pixels (B, 3, S, S) to a feature map (B, D, H, W), and the properties that its users need."""

    network: nn.Module
    feature_size: int  # D
    image_size: int  # S
    grid_size: tuple[int, int]  # H, W
    preprocessing: Mapping[str, Any]  # mean, std and interpolation of ImageTransform


class ConcatBackbones(nn.ModuleDict):
    """Applies several networks to the same pixels and concatenates their feature maps along the channel dimension."""

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.cat([backbone(pixels) for backbone in self.values()], dim=1)  # (B, sum of D, H, W)


class SkipInit(TorchFunctionMode):
    """Skips the functions of ``torch.nn.init``, for modules whose weights are loaded afterwards."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def truncate_at(backbone: nn.Module, layer: str) -> nn.Module:
    """Return the layers up to and including ``layer``, with unchanged names; ``""`` returns the whole backbone.

    The children of the backbone must be in the order of execution, as in every registered CNN.
    """
    if not layer:
        return backbone
    name, _, rest = layer.partition(".")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for child_name, child in backbone.named_children():
        layers[child_name] = truncate_at(child, rest) if child_name == name else child
        if child_name == name:
            break
    return nn.Sequential(layers)


def to_channels_last_(module: nn.Module) -> None:
    """Convert convolution weights to channels-last, the fastest memory format for CNNs on a CPU."""
    convert_conv2d_weight_memory_format(module, torch.channels_last)


def fuse_conv_bn_(module: nn.Module) -> None:
    """Fuse each BatchNorm into the convolution before it, which must be the preceding child of the same module."""
    previous_name, previous = "", module
    for name, child in list(module.named_children()):
        if isinstance(child, nn.BatchNorm2d) and isinstance(previous, nn.Conv2d):
            module.register_module(previous_name, fuse_conv_bn_eval(previous, child))
            module.register_module(name, nn.Sequential(*child.children()))  # the activation of timm's BatchNormAct2d
        else:
            fuse_conv_bn_(child)
        previous_name, previous = name, child


def flatten_blocks(module: nn.Module) -> list[nn.Module]:
    """Return blocks and single layers in the order of execution, taken out of all nested ``nn.Sequential``."""
    if not isinstance(module, nn.Sequential):
        return [module]
    return [block for child in module.children() for block in flatten_blocks(child)]


def split_last_blocks(backbone: nn.Module, num_blocks: int) -> tuple[nn.Sequential, nn.Sequential]:
    """Split a backbone before its last blocks. With 0 blocks, the first part is empty.

    A layer counts as a block if it has parameters other than those of BatchNorm.

    Raises:
        ValueError: ``num_blocks`` is out of range; its argument is the number of blocks of the backbone.
    """
    layers = flatten_blocks(backbone)
    starts = [
        index
        for index, layer in enumerate(layers)
        if any(direct_parameters(module, include_bn=False) for module in layer.modules())
    ]
    if not 0 <= num_blocks <= len(starts):
        raise ValueError(len(starts))
    start = starts[-num_blocks] if num_blocks else 0
    return nn.Sequential(*layers[:start]), nn.Sequential(*layers[start:])


def in_channels(module: nn.Module) -> int:
    """Return the number of input channels of a backbone or of its last blocks."""
    return next(layer.in_channels for layer in module.modules() if isinstance(layer, nn.Conv2d))


def direct_parameters(module: nn.Module, include_bn: bool) -> list[nn.Parameter]:
    """Return the parameters of the module itself, without those of its children."""
    if isinstance(module, _BatchNorm) and not include_bn:
        return []
    return list(module.parameters(recurse=False))
