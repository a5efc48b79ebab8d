"""Encoder: a CNN or ViT backbone that maps images to features (B, L, D), one vector for each of L locations."""

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from captioning.models.backbone_utils import (
    ConcatBackbones,
    direct_parameters,
    fuse_conv_bn_,
    in_channels,
    split_last_blocks,
    to_channels_last_,
)
from captioning.models.backbones import TIMM_PREFIX, build_backbone, check_backbone_name
from captioning.models.pca import PCAProjection
from captioning.preprocessing.image import ImageTransform, ResizeMode
from captioning.utils.errors import CaptioningError

_CPU_CHUNK_SIZE = 8  # activations of 8 images fit into the CPU caches; 32 images at once take twice as long per image


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Settings of the encoder.

    Args:
        backbone: name in the registry ``captioning.models.backbones.BACKBONES``, or ``timm/NAME``.
        weights: ``random``, ``pretrained`` (installed package or download), or the path of a ``.safetensors`` or
            ``.pth`` file with the state dict of the whole backbone.
        image_size: side length of the input in pixels, a multiple of the stride; null for the default of the backbone.
        resize_mode: conversion of a non-square image to a square: ``stretch``, ``crop`` or ``pad``.
        frozen: disable gradients and keep BatchNorm at its running statistics.
        output_stride: input pixels per location, for CNNs that support dilation (8, 16 or 32); null for the default of
            the backbone. 16 doubles rows and columns of a CNN of stride 32, with the same weights.
        pca_components: number of principal components that the features are projected to, which makes the feature cache
            smaller; null for no projection. The projection is fitted on training images before the training.
    """

    backbone: str = "tiny"
    weights: str = "random"
    image_size: int | None = None
    resize_mode: ResizeMode = "stretch"
    frozen: bool = True
    output_stride: int | None = None
    pca_components: int | None = None

    def __post_init__(self) -> None:
        if not self.backbone.startswith(TIMM_PREFIX):
            check_backbone_name(self.backbone)
        if self.resize_mode not in get_args(ResizeMode):
            choices = ", ".join(get_args(ResizeMode))
            raise CaptioningError(f"unknown resize_mode '{self.resize_mode}'; choose one of {choices}")
        for name in ("image_size", "output_stride", "pca_components"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise CaptioningError(f"{name} must be >= 1, got {value}; set it to null for the default")


class FeatureExtractor(nn.Module):
    """A backbone (or its first blocks) together with the image transform that it expects.

    Args:
        backbone: maps pixels to a feature map (B, D, H, W).
        config: plain values that identify the backbone.
        transform: image transform.
        feature_size: number of channels of the feature map, D.
        grid_size: rows and columns of the feature map.
        frozen: disable gradients and keep BatchNorm at its running statistics.
    """

    def __init__(
        self,
        backbone: nn.Module,
        config: dict[str, Any],
        transform: ImageTransform,
        feature_size: int,
        grid_size: tuple[int, int],
        frozen: bool,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.config = config
        self.transform = transform
        self.feature_size = feature_size
        self.grid_size = grid_size
        to_channels_last_(self)
        self.frozen = frozen
        self._trained_bn: list[nn.Module] = []  # BatchNorm layers of a frozen encoder that are trained nevertheless
        if frozen:
            self.freeze()

    def train(self, mode: bool = True) -> Self:
        super().train(mode and not self.frozen)
        for module in self._trained_bn:
            module.train(mode)
        return self

    def freeze(self) -> None:
        """Disable gradients and keep BatchNorm at its running statistics."""
        self.frozen = True
        self._trained_bn = []
        self.requires_grad_(False)
        self.eval()

    def for_inference(self) -> Self:
        """Return a frozen copy with BatchNorm fused into convolutions, which computes the same features faster.

        Its state dict has other names and shapes. Save the original instead.
        """
        clone = copy.deepcopy(self)
        clone.freeze()
        if isinstance(clone.backbone, nn.Sequential | ConcatBackbones):  # children are in the order of execution
            fuse_conv_bn_(clone.backbone)
        to_channels_last_(clone)
        return clone

    def forward(self, pixels: Tensor) -> Tensor:
        """Map pixels (B, 3, S, S) to features (B, L, D), with locations in row-major order."""
        return self._forward_features(self.backbone, pixels)

    def _forward_features(self, network: nn.Module, inputs: Tensor) -> Tensor:
        """Map (B, C, h, w) to features (B, L, D)."""
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        chunks: Sequence[Tensor] = [inputs]
        if inputs.device.type == "cpu" and not self.training and not torch.is_grad_enabled():
            chunks = inputs.split(_CPU_CHUNK_SIZE)
        return torch.cat([network(chunk).flatten(2).transpose(1, 2) for chunk in chunks])  # (B, L, D)


class Encoder(FeatureExtractor):
    """Feature extractor built from the values of :class:`EncoderConfig`, where the arguments are documented.

    ``config`` holds the values that a model file needs to rebuild the encoder, without ``weights`` and ``frozen``.
    """

    def __init__(
        self,
        backbone: str,
        weights: str = "random",
        image_size: int | None = None,
        resize_mode: ResizeMode = "stretch",
        frozen: bool = True,
        output_stride: int | None = None,
        pca_components: int | None = None,
    ) -> None:
        EncoderConfig(backbone, weights, image_size, resize_mode, frozen, output_stride, pca_components)  # checks
        built = build_backbone(backbone, weights, image_size, output_stride)
        super().__init__(
            backbone=built.network,
            config={
                "backbone": backbone,
                "image_size": built.image_size,
                "resize_mode": resize_mode,
                "output_stride": output_stride,
                "pca_components": pca_components,
            },
            transform=ImageTransform(built.image_size, resize_mode=resize_mode, **built.preprocessing),
            feature_size=pca_components or built.feature_size,
            grid_size=built.grid_size,
            frozen=frozen,
        )
        self.pca = None if pca_components is None else PCAProjection(built.feature_size, pca_components)

    def forward(self, pixels: Tensor) -> Tensor:
        """Map pixels (B, 3, S, S) to features (B, L, D), with locations in row-major order."""
        return self._project(super().forward(pixels))

    def without_pca(self) -> FeatureExtractor:
        """Return the extractor of the features before the projection, with shared weights."""
        config = {**self.config, "pca_components": None}
        feature_size = self.feature_size if self.pca is None else self.pca.weight.shape[1]
        return FeatureExtractor(self.backbone, config, self.transform, feature_size, self.grid_size, frozen=True)

    def _project(self, features: Tensor) -> Tensor:
        return features if self.pca is None else self.pca(features)

    def unfreeze(self, num_blocks: int = 0, train_bn: bool = False) -> list[nn.Parameter]:
        """Enable gradients in the last blocks of a frozen encoder and return their parameters.

        Args:
            num_blocks: number of blocks, where a convolution outside of blocks counts as one; 0 for all.
            train_bn: also train BatchNorm, both its parameters and its running statistics.
        """
        modules = [module for _, tail in self._split_last_blocks(num_blocks) for module in tail.modules()]
        if train_bn:
            self._trained_bn = [module for module in modules if isinstance(module, _BatchNorm)]
            self.train()
        parameters = [parameter for module in modules for parameter in direct_parameters(module, include_bn=train_bn)]
        for parameter in parameters:
            parameter.requires_grad_(True)
        return parameters

    def frozen_trunk(self, num_blocks: int) -> FeatureExtractor:
        """Return all blocks but the last ``num_blocks``, with shared weights: the part that stays frozen."""
        trunks = [trunk for trunk, _ in self._split_last_blocks(num_blocks)]
        backbone = ConcatBackbones({str(index): trunk for index, trunk in enumerate(trunks)})
        device = next(self.parameters()).device
        size = self.transform.image_size
        with torch.inference_mode():
            _, feature_size, rows, columns = backbone.eval()(torch.zeros(1, 3, size, size, device=device)).shape
        config = {**self.config, "dropped_blocks": num_blocks}
        return FeatureExtractor(backbone, config, self.transform, feature_size, (rows, columns), frozen=True)

    def forward_tail(self, features: Tensor, num_blocks: int) -> Tensor:
        """Map features of the trunk (B, L', D') to features (B, L, D) by the last blocks; 0 blocks are the identity."""
        if not num_blocks:
            return features
        tails = [tail for _, tail in self._split_last_blocks(num_blocks)]
        feature_map = features.mT.unflatten(2, (math.isqrt(features.shape[1]), -1))  # (B, D', h, w): inputs are square
        parts = feature_map.split([in_channels(tail) for tail in tails], dim=1)
        outputs = [self._forward_features(*pair) for pair in zip(tails, parts, strict=True)]
        return self._project(torch.cat(outputs, dim=-1))

    def _split_last_blocks(self, num_blocks: int) -> list[tuple[nn.Sequential, nn.Sequential]]:
        """Split each of the concatenated backbones before its last blocks."""
        networks = self.backbone.values() if isinstance(self.backbone, ConcatBackbones) else [self.backbone]
        try:
            return [split_last_blocks(network, num_blocks) for network in networks]
        except ValueError as error:
            raise CaptioningError(
                f"num_blocks {num_blocks} is out of range: '{self.config['backbone']}' has {error} blocks; "
                "set it to 0 for all"
            ) from None
