"""Attention supervision: words that name an object with a box attend to the box (Liu et al. 2017, "Attention
Correctness in Neural Image Captioning").

Shapes: B images, N tokens of the batch without padding, K categories with boxes in the batch, L locations, V vocabulary
size.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from captioning.datasets.batch import Batch
from captioning.datasets.boxes import boxes_by_category, crop_boxes, grid_coverage
from captioning.datasets.categories import phrase_table, word_category
from captioning.datasets.record import Record
from captioning.datasets.view import View
from captioning.models.decoder import DecoderOutput
from captioning.objectives.base import CaptionModel, OutputTerm
from captioning.preprocessing.image import Box, read_image_size
from captioning.utils.errors import CaptioningError

_MIN_MASS = 1e-6  # a smaller attention mass in the boxes has no gradient; log stays finite
_MIN_VISIBLE = 0.25  # of a box's area; a crop that shows less of an object may not show what the word names


class BoxSupervision(OutputTerm):
    """−log of the attention mass in the boxes of the category that a word names (Liu et al. 2017).

    The term is summed over the words of a caption that name a category with a box in the image, and averaged over all
    captions, like the negative log-likelihood. Images without boxes contribute zero. A location is weighted by the
    fraction of its cell that the union of the boxes covers, divided by the maximum over all cells. The maximum weight
    is therefore 1 even for an object smaller than a cell. Hard attention is supervised through its probabilities α,
    not through the sampled locations.

    Args:
        weight: factor of the term in the loss.
    """

    name = "box_supervision"

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__(weight)

    def setup(self, model: CaptionModel) -> None:
        if model.decoder.location_dropout:
            raise CaptioningError("BoxSupervision requires all locations: set model.decoder.location_dropout to 0")
        self._transform = model.encoder.transform
        self._grid_size = model.encoder.grid_size
        self._categories = TokenCategories(model.vocabulary.tokens)

    def forward(self, output: DecoderOutput, features: Tensor, batch: Batch) -> Tensor:
        masks, mask_rows = self._location_masks(batch)  # (B, K + 1, L)
        if masks.shape[1] == 1:
            return output.logits.new_zeros(())
        device = output.targets.device
        masks = masks.to(device)
        images, captions, steps = output.token_mask.nonzero().to(device).unbind(1)  # (N,) each
        num_samples = output.token_mask.shape[1] // batch.token_ids.shape[1]
        previous = batch.token_ids[images, captions // num_samples, steps]  # (N,), token_ids begin with BOS
        rows = mask_rows.to(device)[self._categories(previous, output.targets)]  # (N,)
        selected = masks.any(-1)[images, rows]  # (N,), words that name an object with a box
        token_masks = masks[images[selected], rows[selected]]  # (selected, L)
        weights = output.attention_weights[images[selected], captions[selected], steps[selected]]  # (selected, L)
        mass = (weights * token_masks).sum(-1)
        return -mass.clamp(min=_MIN_MASS).log().sum() / int(output.token_mask[..., 0].sum())

    def _location_masks(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute which locations the boxes of each category cover.

        Returns:
            masks: (B, K + 1, L), values from 0 to 1, one row per category that has boxes in the batch; row 0 is zero.
            mask_rows: row of each category id in ``masks``; 0 if the batch has no box of the category.
        """
        image_boxes = [self._boxes(record, view) for record, view in zip(batch.records, batch.views, strict=True)]
        category_ids = self._categories.category_ids
        present = sorted({category for boxes in image_boxes for category in boxes} & category_ids.keys())
        rows = {category: row for row, category in enumerate(present, start=1)}
        masks = np.zeros((len(image_boxes), len(rows) + 1, *self._grid_size), dtype=np.float32)
        for image, boxes in enumerate(image_boxes):
            for category in boxes.keys() & rows.keys():
                coverage = grid_coverage(boxes[category], self._grid_size)
                masks[image, rows[category]] = coverage / coverage.max()
        mask_rows = torch.zeros(len(category_ids), dtype=torch.long)
        for category, row in rows.items():
            mask_rows[category_ids[category]] = row
        return torch.from_numpy(masks).flatten(2), mask_rows

    def _boxes(self, record: Record, view: View) -> dict[str, tuple[Box, ...]]:
        """Boxes of each category in fractions of the encoder's input, which shows a view of the image."""
        if not record.boxes:
            return {}
        region = self._input_region(record, view)
        groups = {
            category: crop_boxes(boxes, region, view.flipped, _MIN_VISIBLE)
            for category, boxes in boxes_by_category(record.boxes).items()
        }
        return {category: boxes for category, boxes in groups.items() if boxes}

    def _input_region(self, record: Record, view: View) -> Box:
        """The region of the image that the encoder's input covers."""
        left, top, right, bottom = view.crop_box
        if self._transform.resize_mode == "stretch":
            return view.crop_box
        width, height = read_image_size(record.image_path)
        view_width, view_height = right - left, bottom - top
        # The transform is applied to the view, in whose fractions this box is.
        box = self._transform.crop_box(round(width * view_width), round(height * view_height))
        return Box(
            left + box.left * view_width,
            top + box.top * view_height,
            left + box.right * view_width,
            top + box.bottom * view_height,
        )


class TokenCategories(nn.Module):
    """Index of the category that a token names after another one, for many tokens at once.

    Args:
        tokens: tokens of the vocabulary in the order of their ids.
    """

    _of_token: Tensor  # (V,)
    _pair_keys: Tensor  # (P,) sorted, V · previous + token of pairs that name another category than the token alone
    _of_pair: Tensor  # (P,)

    def __init__(self, tokens: Sequence[str]) -> None:
        super().__init__()
        token_ids = {token: token_id for token_id, token in enumerate(tokens)}
        pairs = {
            len(tokens) * token_ids[previous] + token_ids[word]: category
            for (previous, word), category in phrase_table().items()
            if previous in token_ids and word in token_ids
        }
        of_token = [word_category(token) for token in tokens]
        categories = dict.fromkeys((*of_token, *pairs.values()))
        self.category_ids = {category: category_id for category_id, category in enumerate(categories)}
        self.register_buffer("_of_token", self._to_ids(of_token), persistent=False)
        # The first key, which no pair has, keeps the search valid for a vocabulary without pairs.
        keys = sorted(pairs)
        self.register_buffer("_pair_keys", torch.tensor([-1, *keys]), persistent=False)
        self.register_buffer("_of_pair", self._to_ids([of_token[0], *map(pairs.__getitem__, keys)]), persistent=False)

    def _to_ids(self, categories: Sequence[str]) -> Tensor:
        return torch.tensor([self.category_ids[category] for category in categories])

    def forward(self, previous: Tensor, token_ids: Tensor) -> Tensor:
        """Previous tokens (N,) and tokens (N,) -> category ids (N,)."""
        keys = len(self._of_token) * previous + token_ids
        position = torch.searchsorted(self._pair_keys, keys).clamp(max=len(self._pair_keys) - 1)
        is_pair = self._pair_keys[position] == keys
        return torch.where(is_pair, self._of_pair[position], self._of_token[token_ids])
