"""LightningDataModule: records of a dataset, the vocabulary, feature caches and data loaders."""

import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from captioning.datasets import resolve_root
from captioning.datasets.batch import Batch
from captioning.datasets.mixture import DatasetConfig, load_mixture
from captioning.datasets.record import Record
from captioning.datasets.synthetic import shapes
from captioning.datasets.view import ViewKey, train_view_keys
from captioning.models.checkpoint import read_model
from captioning.models.encoder import Encoder
from captioning.preprocessing.tokenizer import tokenize
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.training.callbacks import num_finetuned_blocks
from captioning.training.caption_dataset import CaptionDataset, allowed_views
from captioning.training.feature_cache import FeatureCache, open_or_build
from captioning.training.pca_fitting import ensure_pca_fitted
from captioning.training.sampler import LengthGroupedBatchSampler
from captioning.utils.errors import CaptioningError

_EVAL_BATCH_FACTOR = 4  # without gradients, larger batches fit into memory
_SPLITS_OF_STAGE = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("test",)}


class ResumableDataLoader(DataLoader[Batch]):
    """Counts its batches, so that a run that was stopped within an epoch continues with the next batch.

    Lightning saves ``state_dict`` in checkpoints and restores it only for a run that was stopped within an epoch.
    """

    batch_sampler: LengthGroupedBatchSampler
    num_yielded = 0

    def __iter__(self) -> Any:  # an iterator of batches; the class of torch's iterator is private
        self.num_yielded = self.batch_sampler.start_batch
        for batch in super().__iter__():
            self.num_yielded += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"num_yielded": self.num_yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.batch_sampler.start_batch = state["num_yielded"]


def _identity_collate(batch: Any) -> Any:
    """``__getitems__`` returns whole batches."""
    return batch


class CaptionDataModule(pl.LightningDataModule):
    """A dataset of captioned images.

    Args:
        root: directory in any layout of data/README.md, or its name below ``$CAPTIONING_DATA_DIR``. For several
            datasets, a list of directories, or of mappings with ``root`` and optionally ``name``, ``weight`` (times
            that each training image is used per epoch), ``held_out_boxes`` and ``augment``.
        num_scenes: generate this number of synthetic scenes in ``root`` if it does not exist; 0 for existing data.
        seed: random seed of synthetic scenes and of the training order.
        batch_size: images per batch, each with all its captions.
        bucket_batches: images are sorted by caption length within this number of batches, which saves decoder steps. 1
            disables it, which BatchNorm in training mode requires if length and content are correlated.
        min_word_freq: words with fewer occurrences in the training captions become <unk>.
        max_vocab_size: maximum vocabulary size, special tokens included; null for no limit.
        init_from: model whose vocabulary is used; linked to model.init_from.
        extend_vocabulary: append new words of the training captions to the vocabulary of init_from.
        cache_images: keep decoded images in memory.
        feature_cache_dir: directory of the feature cache of a frozen encoder; null disables it.
        hflip: train on flipped images as well, except where a caption contains a direction word; requires the feature
            cache.
        num_crops: number of additional random crops per training image, of 60 to 100 % of its width and height. With
            hflip, every second crop is flipped. One view is sampled each time an image is used. Requires the feature
            cache.
        reencode: resize and compress training images by random amounts first, so that captions depend less on how an
            image was saved; requires the feature cache.
        captions_per_image: maximum number of captions per use of an image, sampled each time; null for all. Each
            caption has the same weight in the loss, so an image with five captions counts five times as much as an
            image with one; 1 gives all images the same weight.
        num_workers: number of processes that load images.
    """

    def __init__(
        self,
        root: list[DatasetConfig | Path] | Path,
        num_scenes: int = 0,
        seed: int = 0,
        batch_size: int = 32,
        bucket_batches: int = 50,
        min_word_freq: int = 1,
        max_vocab_size: int | None = None,
        init_from: str | None = None,
        extend_vocabulary: bool = False,
        cache_images: bool = False,
        feature_cache_dir: Path | None = Path("data/features"),
        hflip: bool = False,
        num_crops: int = 0,
        reencode: bool = False,
        captions_per_image: int | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        for name, value, minimum in (
            ("batch_size", batch_size, 1),
            ("bucket_batches", bucket_batches, 1),
            ("num_scenes", num_scenes, 0),
            ("num_crops", num_crops, 0),
            ("captions_per_image", captions_per_image, 1),
            ("num_workers", num_workers, 0),
        ):
            if value is not None and value < minimum:
                raise CaptioningError(f"data.{name} must be >= {minimum}, got {value}")
        if max_vocab_size is not None and max_vocab_size <= len(Vocabulary.SPECIAL_TOKENS):
            raise CaptioningError(
                f"data.max_vocab_size must be > {len(Vocabulary.SPECIAL_TOKENS)}, the number of special tokens, "
                f"got {max_vocab_size}"
            )
        if extend_vocabulary and init_from is None:
            raise CaptioningError("data.extend_vocabulary has no effect without model.init_from")
        roots = root if isinstance(root, list) else [root]
        self.datasets = [item if isinstance(item, DatasetConfig) else DatasetConfig(Path(item)) for item in roots]
        if not self.datasets:
            raise CaptioningError("data.root is an empty list; give at least one dataset")
        if num_scenes and len(self.datasets) > 1:
            raise CaptioningError("data.num_scenes requires a single data.root; generate scenes with make-shapes first")
        self.num_scenes = num_scenes
        self.seed = seed
        self.batch_size = batch_size
        self.bucket_batches = bucket_batches
        self.min_word_freq = min_word_freq
        self.max_vocab_size = max_vocab_size
        self.init_from = init_from
        self.extend_vocabulary = extend_vocabulary
        self.cache_images = cache_images
        self.feature_cache_dir = feature_cache_dir
        self.hflip = hflip
        self.num_crops = num_crops
        self.reencode = reencode
        self.captions_per_image = captions_per_image
        self.num_workers = num_workers

    @functools.cached_property
    def records(self) -> list[Record]:
        if self.num_scenes:
            shapes.ensure_dataset(resolve_root(self.datasets[0].root), self.num_scenes, self.seed)
        return load_mixture(self.datasets)

    @functools.cached_property
    def vocabulary(self) -> list[str]:
        """Tokens in the order of their ids. The command line links them to the model."""
        known = [] if self.init_from is None else read_model(self.init_from).header["vocabulary"]
        if known and not self.extend_vocabulary:
            return known
        captions = (tokenize(caption) for record in self._split("train") for caption in record.captions)
        tokens = Vocabulary.build(captions, self.min_word_freq, self.max_vocab_size).tokens
        return [*known, *(token for token in tokens if token not in set(known))] if known else tokens

    def prepare_data(self) -> None:
        """Complete the feature cache, once per machine."""
        assert self.trainer is not None
        module: Any = self.trainer.lightning_module
        assert self.trainer.state.fn is not None
        splits = _SPLITS_OF_STAGE[self.trainer.state.fn]
        self.open_feature_cache(module.encoder, self.trainer.strategy.root_device, splits)

    def open_feature_cache(
        self, encoder: Encoder, device: torch.device | str = "cpu", splits: Sequence[str] = ("train", "val", "test")
    ) -> FeatureCache | None:
        """Open the feature cache, completed for some splits; None if the whole encoder is trained at some time.

        If only its last blocks are trained, the cache contains their input. Training images have all their views.
        """
        num_blocks = num_finetuned_blocks(self.trainer)
        if self.feature_cache_dir is None or not encoder.frozen or num_blocks == 0:
            for name, is_set in (("hflip", self.hflip), ("num_crops", self.num_crops), ("reencode", self.reencode)):
                if is_set:
                    raise CaptioningError(
                        f"data.{name} requires the feature cache: set model.encoder.frozen and data.feature_cache_dir"
                    )
            if encoder.pca is not None and not encoder.pca.is_fitted:
                raise CaptioningError(
                    "model.encoder.pca_components requires the feature cache, or model.init_from with a projection: "
                    "set model.encoder.frozen and data.feature_cache_dir"
                )
            return None
        encoder.to(device)
        if encoder.pca is not None:
            train_images = [record.image_path for record in self._split("train")]
            ensure_pca_fitted(encoder, train_images, self.feature_cache_dir, device)
        extractor = encoder if num_blocks is None else encoder.frozen_trunk(num_blocks)
        images = []
        for record in self._split(*splits):
            view_keys = self._view_keys(record.split)
            images.append((record.image_path, [view_keys[index] for index in self._allowed_views(record)]))
        return open_or_build(self.feature_cache_dir, extractor, images, device)

    def _view_keys(self, split: str) -> list[ViewKey]:
        return train_view_keys(self.hflip, self.num_crops, self.reencode) if split == "train" else [ViewKey()]

    def _allowed_views(self, record: Record) -> list[int]:
        """Indices of the views of an image that its dataset is trained on, and that match its captions."""
        augmented = {config.label for config in self.datasets if config.augment}
        return allowed_views(record, self._view_keys(record.split)) if record.dataset in augmented else [0]

    def train_dataloader(self) -> ResumableDataLoader:
        return self._loader("train", self.seed)

    def val_dataloader(self) -> ResumableDataLoader:
        return self._loader("val")

    def test_dataloader(self) -> ResumableDataLoader:
        return self._loader("test")

    def predict_dataloader(self) -> ResumableDataLoader:
        return self._loader("test")

    def _split(self, *names: str) -> list[Record]:
        records = [record for record in self.records if record.split in names]
        if not records:
            roots = ", ".join(str(config.root) for config in self.datasets)
            raise CaptioningError(f"{roots}: no images in split '{' or '.join(names)}'; see data/README.md")
        return records

    def _weights(self, records: Sequence[Record]) -> list[tuple[int, float]]:
        """Number of records and weight of each dataset, in the order of the records."""
        counts = Counter(record.dataset for record in records)
        return [(counts[config.label], config.weight) for config in self.datasets]

    def _loader(self, split: str, seed: int | None = None) -> ResumableDataLoader:
        assert self.trainer is not None
        module: Any = self.trainer.lightning_module  # a CaptioningModule, whose module imports this one indirectly
        dataset = CaptionDataset(
            self._split(split),
            module.vocabulary,
            module.encoder.transform,
            self.cache_images,
            self.open_feature_cache(module.encoder, module.device, [split]),
            self._view_keys(split),
            num_finetuned_blocks(self.trainer) or 0,
        )
        is_training = seed is not None
        batch_sampler = LengthGroupedBatchSampler(
            dataset.lengths(),
            self.batch_size if is_training else _EVAL_BATCH_FACTOR * self.batch_size,
            self.bucket_batches,
            seed,
            self.trainer.global_rank,
            self.trainer.world_size,
            [self._allowed_views(record) for record in dataset.records] if is_training else None,
            self._weights(dataset.records) if is_training else None,
            self.captions_per_image if is_training else None,
        )
        return ResumableDataLoader(
            dataset,
            batch_sampler=batch_sampler,
            collate_fn=_identity_collate,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            generator=torch.Generator(),  # otherwise each epoch consumes a number of the global generator
        )
