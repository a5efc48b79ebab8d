"""Data set of captioned images, loaded a batch at a time from image files or from feature caches."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from captioning.datasets.batch import Batch, pad_captions
from captioning.datasets.record import Record
from captioning.preprocessing.image import ImageTransform, open_image
from captioning.preprocessing.tokenizer import tokenize
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.training.feature_cache import FeatureCache
from captioning.training.sampler import SampleKey
from captioning.utils.errors import CaptioningError

DIRECTION_WORDS = frozenset(("left", "right", "leftmost", "rightmost", "lefthand", "righthand"))
_CHUNK_SIZE = 250  # images whose features are in memory together, in float32


class CaptionDataset(Dataset[Batch]):
    """Records of one split.

    Args:
        records: records of the split.
        vocabulary: vocabulary of the model.
        transform: image transform of the encoder.
        cache_images: keep decoded images in memory.
        cache: feature cache; without one, images are loaded as pixels.
        cache_rows: row of each record in the cache.
        crop_cache: cache of random crops of these records, in their order.
        num_tail_blocks: number of last encoder blocks that are not part of the cached features.
    """

    def __init__(
        self,
        records: Sequence[Record],
        vocabulary: Vocabulary,
        transform: ImageTransform,
        cache_images: bool = False,
        cache: FeatureCache | None = None,
        cache_rows: Sequence[int] = (),
        crop_cache: FeatureCache | None = None,
        num_tail_blocks: int = 0,
    ) -> None:
        self.records = records
        self.transform = transform
        self.cache = cache
        self.cache_rows = cache_rows
        self.crop_cache = crop_cache
        self.num_tail_blocks = num_tail_blocks
        self._pixels: dict[int, Tensor] | None = {} if cache_images else None
        # Longest captions first, here and in a batch: the decoder then processes fewer padded positions.
        self.captions = [
            sorted((vocabulary.encode(tokenize(caption)) for caption in record.captions), key=len, reverse=True)
            for record in records
        ]

    def __len__(self) -> int:
        return len(self.records)

    def lengths(self) -> list[tuple[int, ...]]:
        """Caption lengths of each image, longest first."""
        return [tuple(len(token_ids) - 1 for token_ids in captions) for captions in self.captions]

    def allowed_views(self) -> list[list[int]]:
        """Views of each image that match its captions: no flipped ones if a caption contains a direction word.

        View 0 is the image itself; its flipped view and its crops follow, as far as the caches contain them.
        """
        caches = [cache for cache in (self.cache, self.crop_cache) if cache is not None]
        is_flipped = [flipped for cache in caches for flipped in cache.is_flipped] or [False]
        all_views = list(range(len(is_flipped)))
        upright = [view for view in all_views if not is_flipped[view]]
        if upright == all_views:
            return [all_views] * len(self)
        words = ({word for caption in record.captions for word in tokenize(caption)} for record in self.records)
        return [upright if DIRECTION_WORDS & image_words else all_views for image_words in words]

    def mean_features(self) -> Tensor:
        """Cached features averaged over locations, (N, D) in float32, one row per record."""
        if self.cache is None:
            raise CaptioningError(
                "neighbors requires the feature cache: set data.feature_cache_dir and model.encoder.frozen true"
            )
        starts = range(0, len(self), _CHUNK_SIZE)
        chunks = (self.cache.load(self.cache_rows[start : start + _CHUNK_SIZE]) for start in starts)
        return torch.cat([chunk.float().mean(dim=1) for chunk in chunks])

    def __getitems__(self, keys: Sequence[SampleKey]) -> Batch:
        """Load a batch."""
        keys = sorted(keys, key=lambda key: len(self.captions[key.image_index][0]), reverse=True)
        token_ids, lengths = pad_captions([self.captions[key.image_index] for key in keys])
        records = [self.records[key.image_index] for key in keys]
        if self.cache is not None:
            return Batch(None, self._load_features(self.cache, keys), self.num_tail_blocks, token_ids, lengths, records)
        pixels = torch.stack([self._load_pixels(key.image_index) for key in keys])
        return Batch(pixels, None, 0, token_ids, lengths, records)

    def _load_features(self, cache: FeatureCache, keys: Sequence[SampleKey]) -> Tensor:
        """Features (B, L, D) in float16; views after those of the cache are crops."""
        whole = [key for key in keys if key.view < cache.num_views]
        features = cache.load([self.cache_rows[key.image_index] for key in whole], [key.view for key in whole])
        if self.crop_cache is None:
            return features
        is_crop = torch.tensor([key.view >= cache.num_views for key in keys])
        crops = [key for key in keys if key.view >= cache.num_views]
        result = torch.empty(len(keys), *features.shape[1:], dtype=torch.float16)
        result[~is_crop] = features
        result[is_crop] = self.crop_cache.load(
            [key.image_index for key in crops], [key.view - cache.num_views for key in crops]
        )
        return result

    def _load_pixels(self, index: int) -> Tensor:
        if self._pixels is not None and index in self._pixels:
            return self._pixels[index]
        pixels = self.transform(open_image(self.records[index].image_path, self.transform.image_size))
        if self._pixels is not None:
            self._pixels[index] = pixels
        return pixels
