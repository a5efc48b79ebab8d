"""Backbones ``timm/NAME``: any image model of timm that yields a grid of features.

The feature layer, channels, input size, mean, std and interpolation come from timm's own tables (``feature_info``,
``pretrained_cfg``). CNNs and hierarchical transformers use the last entry of ``feature_info``; plain ViTs use the patch
tokens of the last block after the final norm.
"""

import difflib
from typing import Any

import torch
from torch import Tensor, nn

from captioning.models.backbone_utils import Backbone, SkipInit
from captioning.models.backbones import TIMM_PREFIX, check_image_size, foreign_weights_error, read_weights_file
from captioning.utils.errors import CaptioningError
from captioning.utils.torchvision_compat import defer_slow_imports, import_torchvision


def _import_timm() -> Any:
    with defer_slow_imports():
        import_torchvision()  # timm imports torchvision
        import timm
    return timm


class TimmFeatureMap(nn.Module):
    """A timm CNN, created with ``features_only``: pixels (B, 3, S, S) -> last feature map (B, D, H, W)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        feature_map = self.model(pixels)[-1]
        if getattr(self.model, "output_fmt", "NCHW") == "NHWC":  # Swin Transformer
            feature_map = feature_map.permute(0, 3, 1, 2)
        return feature_map  # (B, D, H, W)


class TimmPatchTokens(nn.Module):
    """A timm ViT: pixels (B, 3, S, S) -> patch tokens as a feature map (B, D, H, W), without class tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.layer = model.prune_intermediate_layers(1, prune_norm=False, prune_head=True)[-1]

    def forward(self, pixels: Tensor) -> Tensor:
        model: Any = self.model
        (feature_map,) = model.forward_intermediates(
            pixels, indices=[self.layer], norm=True, output_fmt="NCHW", intermediates_only=True
        )
        return feature_map  # (B, D, H, W)


def build_timm_backbone(name: str, weights: str, image_size: int | None, output_stride: int | None) -> Backbone:
    """Build a backbone of timm; the arguments are those of ``EncoderConfig``, with the name as timm spells it."""
    timm = _import_timm()
    _check_name(timm, name)
    options: dict[str, Any] = {} if output_stride is None else {"output_stride": output_stride}
    # Buffers that no state dict contains (position indices, masks) would stay on the meta device.
    with torch.device("cpu"):
        with SkipInit(), torch.random.fork_rng(devices=[]):
            probe = _create(timm, name, "random", {**options, "features_only": True})
        info, config = probe.feature_info, probe.pretrained_cfg
        stride = info.reduction()[-1]
        image_size = image_size or max(round(config["input_size"][-1] / stride), 1) * stride
        check_image_size(TIMM_PREFIX + name, image_size, stride)
        if config.get("fixed_input_size"):
            options["img_size"] = image_size
        is_vit = hasattr(getattr(probe, "model", None), "num_prefix_tokens")
        if not is_vit:
            options |= {"features_only": True, "out_indices": (info.out_indices[-1],)}
        model = _create(timm, name, weights, options)
        network = TimmPatchTokens(model) if is_vit else TimmFeatureMap(model)
        feature_size, grid_size = _measure(network, name, image_size)
    preprocessing = {key: config[key] for key in ("mean", "std", "interpolation")}
    return Backbone(network, feature_size, image_size, grid_size, preprocessing)


def _check_name(timm: Any, name: str) -> None:
    names = timm.list_models()
    if "." in name:  # ARCHITECTURE.TAG selects one of several pretrained weights
        names = timm.list_models(pretrained=True)
    if name not in names:
        matches = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        nearest = ", ".join(TIMM_PREFIX + match for match in matches) or "none"
        raise CaptioningError(f"unknown backbone '{TIMM_PREFIX}{name}'; nearest matches: {nearest}")


def _create(timm: Any, name: str, weights: str, options: dict[str, Any]) -> Any:
    """Call ``timm.create_model`` and report its errors in one line."""
    full_name = TIMM_PREFIX + name
    if weights not in ("random", "pretrained"):
        return _create_from_file(timm, name, weights, options)
    try:
        return timm.create_model(name, pretrained=weights == "pretrained", **options)
    except Exception as error:  # timm, its hub client and the model constructors raise many types
        reason = str(error).strip().partition("\n")[0]
        if weights == "pretrained":
            message = f"the weights of '{full_name}' cannot be downloaded ({reason}); set weights to a local file"
        else:
            given = ", ".join(
                f"{key} {value}" for key, value in options.items() if key in ("img_size", "output_stride")
            )
            message = (
                f"'{full_name}' yields no feature grid{given and f' with {given}'} ({reason}); choose another model"
            )
        raise CaptioningError(message) from None


def _create_from_file(timm: Any, name: str, path: str, options: dict[str, Any]) -> Any:
    """Create a model with the weights of a local file. timm resizes position embeddings to the image size."""
    full_name = TIMM_PREFIX + name
    state_dict = read_weights_file(full_name, path)
    with SkipInit(), torch.random.fork_rng(devices=[]):
        expected = timm.create_model(name, num_classes=0).state_dict().keys()
    missing = [key for key in expected if key not in state_dict]
    if missing:  # timm ignores missing tensors if it removes the classifier
        raise foreign_weights_error(full_name, path, KeyError(f"{len(missing)} tensors are missing, e.g. {missing[0]}"))
    try:
        model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"state_dict": state_dict}, **options)
    except Exception as error:
        raise foreign_weights_error(full_name, path, error) from None
    for module in model.modules():  # timm keeps a reference to the state dict
        for table in ("pretrained_cfg", "default_cfg"):
            getattr(module, table, {}).pop("state_dict", None)
    return model


def _measure(network: nn.Module, name: str, image_size: int) -> tuple[int, tuple[int, int]]:
    """Return channels and grid size of the feature map. Not every CNN pads its input to a multiple of the stride."""
    try:
        with torch.no_grad():
            _, feature_size, rows, columns = network.eval()(torch.zeros(1, 3, image_size, image_size)).shape
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise CaptioningError(f"'{TIMM_PREFIX}{name}' cannot process images of size {image_size} ({reason})") from None
    network.train()
    return feature_size, (rows, columns)
