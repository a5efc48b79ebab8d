"""Dataset of captioned images, loaded a batch at a time from image files or from feature caches."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from captioning.datasets.batch import Batch, pad_captions
from captioning.datasets.content_hash import hash_content
from captioning.datasets.record import Record
from captioning.datasets.view import View, ViewKey
from captioning.preprocessing.image import ImageTransform, open_image
from captioning.preprocessing.tokenizer import tokenize
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.training.feature_cache import FeatureCache
from captioning.training.sampler import SampleKey
from captioning.utils.errors import CaptioningError

DIRECTION_WORDS = frozenset(("left", "right", "leftmost", "rightmost", "lefthand", "righthand"))
_CHUNK_SIZE = 250  # images whose features are in memory together, in float32


def allowed_views(record: Record, view_keys: Sequence[ViewKey]) -> list[int]:
    """Indices of the views that match the captions: no flipped ones if a caption contains a direction word."""
    indices = list(range(len(view_keys)))
    upright = [index for index in indices if not view_keys[index].flipped]
    # Tokenizing every caption would take seconds.
    suspects = (caption for caption in record.captions if "left" in caption.lower() or "right" in caption.lower())
    has_direction = upright != indices and any(DIRECTION_WORDS.intersection(tokenize(caption)) for caption in suspects)
    return upright if has_direction else indices


class CaptionDataset(Dataset[Batch]):
    """Records of one split.

    Args:
        records: records of the split.
        vocabulary: vocabulary of the model.
        transform: image transform of the encoder.
        cache_images: keep decoded images in memory.
        cache: feature cache; without one, images are loaded as pixels.
        view_keys: views of each image, of which the cache contains the allowed ones.
        num_tail_blocks: number of last encoder blocks that are not part of the cached features.
    """

    def __init__(
        self,
        records: Sequence[Record],
        vocabulary: Vocabulary,
        transform: ImageTransform,
        cache_images: bool = False,
        cache: FeatureCache | None = None,
        view_keys: Sequence[ViewKey] = (ViewKey(),),
        num_tail_blocks: int = 0,
    ) -> None:
        self.records = records
        self.transform = transform
        self.cache = cache
        self.view_keys = view_keys
        self.num_tail_blocks = num_tail_blocks
        self._hashes = [] if cache is None else [hash_content(record.image_path) for record in records]
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

    def mean_features(self) -> Tensor:
        """Cached features of the first view averaged over locations, (N, D) in float32, one row per record."""
        if self.cache is None:
            raise CaptioningError(
                "neighbors requires the feature cache: set data.feature_cache_dir and model.encoder.frozen true"
            )
        rows = [self.cache.row(content_hash, self.view_keys[0]) for content_hash in self._hashes]
        chunks = (self.cache.load(rows[start : start + _CHUNK_SIZE]) for start in range(0, len(rows), _CHUNK_SIZE))
        return torch.cat([chunk.float().mean(dim=1) for chunk in chunks])

    def __getitems__(self, keys: Sequence[SampleKey]) -> Batch:
        """Load a batch."""
        keys = sorted(keys, key=lambda key: len(self._captions(key)[0]), reverse=True)
        token_ids, lengths = pad_captions([self._captions(key) for key in keys])
        records = [self.records[key.image_index] for key in keys]
        if self.cache is None:
            pixels = torch.stack([self._load_pixels(key.image_index) for key in keys])
            return Batch(pixels, None, 0, token_ids, lengths, records, [View()] * len(keys))
        named = [(self._hashes[key.image_index], self.view_keys[key.view]) for key in keys]
        features = self.cache.load([self.cache.row(content_hash, view_key) for content_hash, view_key in named])
        views = [view_key.locate(content_hash) for content_hash, view_key in named]
        return Batch(None, features, self.num_tail_blocks, token_ids, lengths, records, views)

    def _captions(self, key: SampleKey) -> list[list[int]]:
        captions = self.captions[key.image_index]
        return captions if key.captions is None else [captions[index] for index in key.captions]

    def _load_pixels(self, index: int) -> Tensor:
        if self._pixels is not None and index in self._pixels:
            return self._pixels[index]
        pixels = self.transform(open_image(self.records[index].image_path, self.transform.image_size))
        if self._pixels is not None:
            self._pixels[index] = pixels
        return pixels
