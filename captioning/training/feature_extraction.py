"""Extraction of the features that a cache lacks: a thread decodes the next images while the encoder runs."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from captioning.datasets.view import MIN_CROP_SCALE, ViewKey, reencode
from captioning.models.encoder import FeatureExtractor
from captioning.models.engine import inference_engine
from captioning.preprocessing.image import ImageTransform, open_image


class ImageViews(NamedTuple):
    """An image and the views of it whose features are required."""

    path: Path
    content_hash: str
    view_keys: Sequence[ViewKey]


def extract_features(
    extractor: FeatureExtractor, images: Sequence[ImageViews], device: torch.device | str, batch_size: int
) -> Iterator[tuple[list[ImageViews], Tensor]]:
    """Yield batches of images with the features (V, L, D), in float16 on the CPU, of all their V views in order.

    Args:
        extractor: the encoder or its frozen blocks, on ``device``.
        images: the images.
        device: device of the extractor.
        batch_size: minimum number of views in a batch; the last batch may be smaller. All views of an image are in
            the same batch, since the image is decoded once.
    """
    extract = inference_engine(extractor)
    for batch, pixels in _prefetch(_split_batches(images, batch_size), extractor.transform):
        with torch.inference_mode():
            yield batch, extract(pixels.to(device)).to("cpu", torch.float16).contiguous()


def _split_batches(images: Sequence[ImageViews], batch_size: int) -> list[list[ImageViews]]:
    batches: list[list[ImageViews]] = []
    num_views = batch_size
    for image in images:
        if num_views >= batch_size:
            batches.append([])
            num_views = 0
        batches[-1].append(image)
        num_views += len(image.view_keys)
    return batches


def _prefetch(
    batches: Sequence[list[ImageViews]], transform: ImageTransform
) -> Iterator[tuple[list[ImageViews], Tensor]]:
    """Yield each batch with its pixels (V, 3, S, S)."""

    def load_batch(batch: list[ImageViews]) -> Tensor:
        return torch.cat([_load_views(image, transform) for image in batch])

    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(load_batch, batches[0]) if batches else None
        for batch, following in zip(batches, [*batches[1:], None], strict=True):
            assert pending is not None
            pixels = pending.result()
            pending = thread.submit(load_batch, following) if following else None
            yield batch, pixels


def _load_views(image: ImageViews, transform: ImageTransform) -> Tensor:
    """Pixels (V, 3, S, S) of the views of an image."""
    # JPEG files are downscaled while decoding, but a crop must not have fewer pixels than the encoder's input. The
    # whole image is decoded as for inference, whether there are crops or not.
    whole_side, crop_side = transform.image_size, math.ceil(transform.image_size / MIN_CROP_SCALE)
    sides = [whole_side if key.crop is None else crop_side for key in image.view_keys]
    decoded = {side: open_image(image.path, side) for side in set(sides)}
    pixels = []
    for key, side in zip(image.view_keys, sides, strict=True):
        view = key.locate(image.content_hash)
        region = view.crop(decoded[side])
        if key.reencoded:
            region = reencode(region, image.content_hash, key)
        upright = transform(region)  # (3, S, S)
        pixels.append(upright.flip(-1) if view.flipped else upright)
    return torch.stack(pixels)
