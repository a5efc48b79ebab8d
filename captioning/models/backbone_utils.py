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


def fix_padding_(module: nn.Module, inputs: Tensor) -> None:
    """Replace timm convolutions whose padding depends on the input size by convolutions with fixed padding.

    ONNX Runtime fuses fixed padding into the convolution.
    """
    paddings: dict[nn.Module, tuple[int, int, int, int]] = {}

    def record_padding(conv: Any, args: tuple[Tensor], output: Tensor) -> None:
        height, width = (
            max((out - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
            for size, out, stride, dilation, kernel in zip(
                args[0].shape[2:], output.shape[2:], conv.stride, conv.dilation, conv.kernel_size, strict=True
            )
        )
        paddings[conv] = (width // 2, width - width // 2, height // 2, height - height // 2)

    # The type is recognized by its name, since importing timm takes longer than most exports.
    convs = [child for child in module.modules() if type(child).__name__ == "Conv2dSame"]
    handles = [conv.register_forward_hook(record_padding) for conv in convs]
    with torch.no_grad():
        module(inputs)
    for handle in handles:
        handle.remove()
    for name, conv in list(module.named_modules()):
        if conv in paddings:
            parent, _, child_name = name.rpartition(".")
            fixed = nn.Sequential(nn.ZeroPad2d(paddings[conv]), _without_padding(conv))
            module.get_submodule(parent).register_module(child_name, fixed)


def _without_padding(conv: Any) -> nn.Conv2d:
    """Return a convolution with the same weights and without padding."""
    plain = nn.Conv2d(
        conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, 0, conv.dilation, conv.groups, bias=False
    )
    plain.weight, plain.bias = conv.weight, conv.bias
    return plain


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
