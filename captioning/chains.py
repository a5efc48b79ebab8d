"""CNNs as chains of links: cut where they are tapped, parted before their last blocks, and folded for inference."""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.nn.utils.memory_format import convert_conv2d_weight_memory_format


def up_to(network: nn.Module, tap: str) -> nn.Module:
    """The CNN's layers up to the tap, names kept: each CNN of the table is the chain of its children."""
    if not tap:
        return network
    name, _, rest = tap.partition(".")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for child_name, child in network.named_children():
        layers[child_name] = up_to(child, rest) if child_name == name else child
        if child_name == name:
            break
    return nn.Sequential(layers)


def channels_last(network: nn.Module) -> None:
    """The layout that CNNs are fastest in on a CPU."""
    convert_conv2d_weight_memory_format(network, torch.channels_last)


def fold_batchnorms(network: nn.Module) -> None:
    """Make each BatchNorm part of the convolution before it; in every CNN of the table that is the child before it."""
    before: tuple[str, nn.Module] = ("", network)
    for name, child in list(network.named_children()):
        if isinstance(child, nn.BatchNorm2d) and isinstance(before[1], nn.Conv2d):
            network.register_module(before[0], fuse_conv_bn_eval(before[1], child))
            network.register_module(name, nn.Sequential(*child.children()))  # timm's hold the activation
        else:
            fold_batchnorms(child)
        before = (name, child)


def chain(network: nn.Module) -> list[nn.Module]:
    """The links of a CNN, first to last: its blocks and single layers, out of whatever Sequentials hold them."""
    links: list[nn.Module] = []
    for child in network.children():
        links += chain(child) if isinstance(child, nn.Sequential) else [child]
    return links


def parted(network: nn.Module, blocks: int) -> tuple[nn.Sequential, nn.Sequential]:
    """A CNN before its last blocks, and from there on; of 0 blocks nothing, and all of it.

    What has weights other than a BatchNorm's counts as a block.
    """
    links = chain(network)
    starts = [
        index
        for index, link in enumerate(links)
        if any(own_parameters(module, batchnorm=False) for module in link.modules())
    ]
    if not 0 <= blocks <= len(starts):
        raise ValueError(len(starts))
    start = starts[-blocks] if blocks else 0
    return nn.Sequential(*links[:start]), nn.Sequential(*links[start:])


def takes(network: nn.Module) -> int:
    """Channels that go into a CNN, or into the last part of one."""
    return next(module.in_channels for module in network.modules() if isinstance(module, nn.Conv2d))


def own_parameters(module: nn.Module, batchnorm: bool) -> list[nn.Parameter]:
    return [] if isinstance(module, _BatchNorm) and not batchnorm else list(module.parameters(recurse=False))
