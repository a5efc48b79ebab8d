"""Recognizes images that no photo looks like: uniform areas, flat drawings and noise.

The score of a caption does not: a model that was trained on photos assigns a high probability to a caption of a black
image. Two statistics of the luminance separate such images from photos. Of 1,330 validation photos of COCO, Flickr8k
and Pascal Sentences, the lowest neighbor correlation is 0.69, and one in a thousand has an entropy below 3 bits.
"""

import math

import numpy as np
from PIL import Image

MIN_ENTROPY = 2.0  # bits of the luminance histogram; a drawing with a few flat colors has less than 1
MIN_NEIGHBOR_CORRELATION = 0.6  # of horizontally and vertically adjacent pixels; that of noise is 0


def resembles_photo(image: Image.Image) -> bool:
    """Whether the statistics of an image, resized to the input of the CNN, are those of a photo."""
    luminance = image.convert("L")
    return (
        _entropy(luminance.histogram()) >= MIN_ENTROPY and _neighbor_correlation(luminance) >= MIN_NEIGHBOR_CORRELATION
    )


def _entropy(histogram: list[int]) -> float:
    """Entropy in bits."""
    total = sum(histogram)
    return -sum(count / total * math.log2(count / total) for count in histogram if count)


def _neighbor_correlation(luminance: Image.Image) -> float:
    """The smaller of the horizontal and the vertical correlation of adjacent pixels; 1 for a uniform image."""
    centered = np.asarray(luminance, np.float32)
    centered = centered - centered.mean()
    variance = float(np.square(centered).mean())
    if not variance:
        return 1.0
    products = (centered[:, 1:] * centered[:, :-1], centered[1:] * centered[:-1])
    return min(float(product.mean()) for product in products) / variance
