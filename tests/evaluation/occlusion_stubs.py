"""A captioner whose words depend on one cell of the image each."""

import random
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from captioning.models import attention
from captioning.models.decoder_output import DecoderOutput
from captioning.preprocessing.image import ImageTransform
from captioning.preprocessing.vocabulary import Vocabulary

GRID_SIDE, CELL = 4, 8
NUM_LOCATIONS = GRID_SIDE * GRID_SIDE
VOCABULARY = Vocabulary([*Vocabulary.SPECIAL_TOKENS, "a", "poppy", "and", "leaf"])
CAPTION = [4, 5, 6, 4, 7]  # a poppy and a leaf
ORDERS = ("most_attended", "other_image", "random", "least_attended", "attended_only")


class CellMeanEncoder(torch.nn.Module):
    """The feature of a location is the mean color of its cell."""

    grid_size = (GRID_SIDE, GRID_SIDE)
    transform = ImageTransform(GRID_SIDE * CELL, (0.0,) * 3, (1.0,) * 3)

    def __init__(self) -> None:
        super().__init__()
        self.num_encoded = 0

    def for_inference(self) -> "CellMeanEncoder":
        return self

    def forward(self, pixels: Tensor) -> Tensor:
        self.num_encoded += len(pixels)
        return F.avg_pool2d(pixels, CELL).flatten(2).mT


class OneCellDecoder(torch.nn.Module):
    """The probability of "poppy" depends only on the reddest cell, that of "leaf" only on the greenest.

    The attention maps have their maximum at this cell, or ``map_shift`` locations after it.
    """

    is_hard = False

    def __init__(self, map_shift: int = 0) -> None:
        super().__init__()
        self.map_shift = map_shift

    def forward(self, features: Tensor, token_ids: Tensor, lengths: Tensor, attention_fn=None) -> DecoderOutput:
        targets = token_ids[:, 0, 1:]  # (N, T)
        channels = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])[targets]  # a leaf is green
        colors = features.mT[torch.arange(len(token_ids))[:, None], channels]  # (N, T, L)
        evidence = 6 * colors.amax(-1) * torch.isin(targets, torch.tensor([5, 7]))  # (N, T)
        logits = F.one_hot(targets, len(VOCABULARY)) * evidence[..., None]
        weights = (10 * colors).softmax(-1).roll(self.map_shift, -1)
        if attention_fn is attention.attend_uniform:
            weights = torch.full_like(weights, 1 / NUM_LOCATIONS)
        token_mask = torch.ones(len(token_ids), 1, targets.shape[1], dtype=torch.bool)
        return DecoderOutput(logits.flatten(0, 1), targets.flatten(), weights[:, None], token_mask, None)


class FixedCaption(list[int]):
    """Takes the place of the generation settings of a stub: every image has this caption."""


def stub_captioner(map_shift: int = 0, caption: list[int] = CAPTION) -> SimpleNamespace:
    encoder, decoder = CellMeanEncoder(), OneCellDecoder(map_shift)
    return SimpleNamespace(
        encoder=encoder,
        decoder=decoder,
        single_model=lambda: (encoder, decoder),
        vocabulary=VOCABULARY,
        generation=FixedCaption(caption),
        attention_mode=None,
        generator=torch.Generator(),
    )


def two_cell_images(num_images: int = 20) -> list[Image.Image]:
    """Black images with one red cell and one green cell."""
    rng = random.Random(0)
    images = []
    for _ in range(num_images):
        images.append(Image.new("RGB", (GRID_SIDE * CELL, GRID_SIDE * CELL)))
        for location, color in zip(rng.sample(range(NUM_LOCATIONS), 2), ((255, 0, 0), (0, 255, 0)), strict=True):
            top, left = location // GRID_SIDE * CELL, location % GRID_SIDE * CELL
            images[-1].paste(color, (left, top, left + CELL, top + CELL))
    return images
