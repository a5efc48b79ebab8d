"""Captioned pictures as Lightning wants them: records of a source, batched by like length."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from captioning import datasets
from captioning.datasets import features, shapes
from captioning.datasets.features import Features
from captioning.datasets.records import Record
from captioning.encoders import Encoder
from captioning.errors import CaptioningError
from captioning.images import Transform, open_image
from captioning.text import Vocabulary, tokenise
from captioning.training.batches import LikeLengthBatches
from captioning.training.callbacks import FineTuneEncoder
from captioning.training.checkpoints import read_checkpoint

SIDES = frozenset(("left", "right", "leftmost", "rightmost", "lefthand", "righthand"))


@dataclasses.dataclass(frozen=True)
class Batch:
    """B pictures with up to C captions each, the pictures as pixels or, from the feature cache, as annotations."""

    pixels: Tensor | None  # (B, 3, size, size)
    annotations: Tensor | None  # (B, L, D) in float16
    blocks: int  # the last ones of the encoder, which learn: the annotations are what goes into them
    words: Tensor  # (B, C, T+1): start mark, words, end mark, padding
    lengths: (
        Tensor  # (B, C), always on the CPU: words to be said, end mark included; 0 where a picture has fewer than C
    )
    records: Sequence[Record]

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        pixels, annotations = (
            None if part is None else part.to(device, non_blocking=non_blocking)
            for part in (self.pixels, self.annotations)
        )
        words = self.words.to(device, non_blocking=non_blocking)
        return dataclasses.replace(self, pixels=pixels, annotations=annotations, words=words)


def pad(captions: Sequence[Sequence[Sequence[int]]]) -> tuple[Tensor, Tensor]:
    """Ids from the start mark on, of each caption of each picture, as the words and lengths of a batch."""
    most = max(len(of_picture) for of_picture in captions)
    longest = max(len(ids) for of_picture in captions for ids in of_picture)
    words = torch.full((len(captions), most, longest), Vocabulary.PAD)
    lengths = torch.zeros((len(captions), most), dtype=torch.long)
    for picture, of_picture in enumerate(captions):
        for caption, ids in enumerate(of_picture):
            words[picture, caption, : len(ids)] = torch.tensor(ids)
            lengths[picture, caption] = len(ids) - 1
    return words, lengths


class CaptionedPictures(Dataset[Batch]):
    """Records of one split, fetched a batch at a time.

    Args:
        records: of the split.
        vocabulary: of the captions.
        transform: of the encoder.
        in_memory: open each picture only once.
        features: the cache to take annotations from, so that no picture is opened at all.
        rows: where in the cache each record's picture is.
        crops: a cache of random crops of these pictures.
        blocks: the last ones of the encoder, which the cache is from before.
    """

    def __init__(
        self,
        records: Sequence[Record],
        vocabulary: Vocabulary,
        transform: Transform,
        in_memory: bool = False,
        features: Features | None = None,
        rows: Sequence[int] = (),
        crops: Features | None = None,
        blocks: int = 0,
    ) -> None:
        self.records = records
        self.transform = transform
        self.features = features
        self.rows = rows
        self.crops = crops
        self.blocks = blocks
        self._opened: dict[int, Tensor] | None = {} if in_memory else None
        # Long captions first, and below long pictures first: the decoder then works on a small block.
        self.captions = [
            sorted((vocabulary.encode(tokenise(caption)) for caption in record.captions), key=len, reverse=True)
            for record in records
        ]

    def __len__(self) -> int:
        return len(self.records)

    def lengths(self) -> list[tuple[int, ...]]:
        """For each picture the lengths of its captions, longest first."""
        return [tuple(len(ids) - 1 for ids in captions) for captions in self.captions]

    def copies(self) -> list[list[int]]:
        """Of each picture the copies that show what its captions say: no mirror image if one says left or right.

        Copy 0 is the picture itself; its mirror image and its crops follow, as far as the caches have them.
        """
        caches = [cache for cache in (self.features, self.crops) if cache is not None]
        mirrored = [copy for cache in caches for copy in cache.mirrored] or [False]
        either = list(range(len(mirrored)))
        upright = [copy for copy in either if not mirrored[copy]]
        if upright == either:
            return [either] * len(self)
        said = ({word for caption in record.captions for word in tokenise(caption)} for record in self.records)
        return [upright if SIDES & words else either for words in said]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """The pictures of these numbers; those from len(self) on are of the pictures' second copies, and so on."""
        size = len(self)
        indices = sorted(indices, key=lambda index: len(self.captions[index % size][0]), reverse=True)
        words, lengths = pad([self.captions[index % size] for index in indices])
        records = [self.records[index % size] for index in indices]
        if self.features is not None:
            return Batch(None, self._annotations(indices), self.blocks, words, lengths, records)
        return Batch(torch.stack([self._pixels(index) for index in indices]), None, 0, words, lengths, records)

    def _annotations(self, indices: Sequence[int]) -> Tensor:
        """(B, L, D) in float16, from the cache that has them."""
        assert self.features is not None
        size, whole = len(self), self.features.copies * len(self)
        rows = [self.rows[index % size] + index // size * len(self.features) for index in indices if index < whole]
        if self.crops is None:
            return self.features[rows]
        is_crop = torch.tensor([index >= whole for index in indices])
        annotations = torch.empty(len(indices), *self.features.annotations.shape[2:], dtype=torch.float16)
        annotations[~is_crop] = self.features[rows]
        annotations[is_crop] = self.crops[[index - whole for index in indices if index >= whole]]
        return annotations

    def _pixels(self, index: int) -> Tensor:
        if self._opened is not None and index in self._opened:
            return self._opened[index]
        pixels = self.transform(open_image(self.records[index].image, self.transform.size))
        if self._opened is not None:
            self._opened[index] = pixels
        return pixels


class ResumableLoader(DataLoader[Batch]):
    """Remembers how far it is in the epoch, so that a run stopped in the middle goes on with the next batch.

    Lightning keeps ``state_dict`` in its checkpoints, and gives it back only to a run that was stopped within an epoch.
    """

    batch_sampler: LikeLengthBatches
    given = 0

    def __iter__(self) -> Any:  # an iterator of batches; what torch's own gives is of a private class
        self.given = self.batch_sampler.skip
        for batch in super().__iter__():
            self.given += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.batch_sampler.skip = state["given"]


def _as_it_is(batch: Any) -> Any:
    """``__getitems__`` gives whole batches: there is nothing to collate."""
    return batch


class CaptioningData(pl.LightningDataModule):
    """A folder of captioned pictures, its vocabulary, and its loaders.

    Args:
        root: the folder, in any of the layouts of data/README.md, or its name below ``$CAPTIONING_DATA``.
        scenes: draw this many scenes into ``root`` if it does not exist; 0 for pictures of your own.
        seed: of drawn scenes and of the order of training.
        batch_size: pictures in a batch; each brings all its captions.
        pool: pictures with captions of like length are brought together among so many batches, which saves steps.
            1 mixes all lengths: a BatchNorm in training needs that, where length goes with what is in the picture.
        minimum_count: words of the training captions seen less often are unknown to the model.
        maximum_words: of more words than this, the marks included, the rarest are unknown too; null for no limit.
        vocabulary_from: a checkpoint whose vocabulary is taken, instead of one built from the training captions.
        in_memory: keep pictures as the encoder wants them, once opened: faster, if there is room for all of them.
        features: folder of the feature cache, where the annotations of a frozen encoder are kept; null for none.
        mirror: train on mirror images too, but not where a caption says left or right; needs the feature cache.
        crops: train on so many random crops of each picture too, of 60 to 100 % of its width and height, which are
            harder to learn by heart. With ``mirror`` every second of them is mirrored. Each time one of a picture's
            copies is taken, all alike often; needs the feature cache.
        workers: processes that load pictures beside the one that trains.
    """

    def __init__(
        self,
        root: Path,
        scenes: int = 0,
        seed: int = 0,
        batch_size: int = 32,
        pool: int = 50,
        minimum_count: int = 1,
        maximum_words: int | None = None,
        vocabulary_from: Path | None = None,
        in_memory: bool = False,
        features: Path | None = Path("data/features"),
        mirror: bool = False,
        crops: int = 0,
        workers: int = 0,
    ) -> None:
        super().__init__()
        self.root = datasets.locate(Path(root))
        self.scenes = scenes
        self.seed = seed
        self.batch_size = batch_size
        self.pool = pool
        if maximum_words is not None and maximum_words <= len(Vocabulary.MARKS):
            raise CaptioningError(f"data.maximum_words {maximum_words}: leaves no words beside the marks")
        self.minimum_count = minimum_count
        self.maximum_words = maximum_words
        self.vocabulary_from = vocabulary_from
        self.in_memory = in_memory
        self.features = features
        self.mirror = mirror
        if crops < 0:
            raise CaptioningError(f"data.crops {crops}: must not be negative")
        self.crops = crops
        self.workers = workers

    @functools.cached_property
    def records(self) -> list[Record]:
        if self.scenes:
            shapes.ensure(self.root, self.scenes, self.seed)
        return datasets.read(self.root)

    @functools.cached_property
    def vocabulary(self) -> list[str]:
        """Every word in the order of its id; read by the model through the command's ``link_arguments``."""
        if self.vocabulary_from is not None:
            return read_checkpoint(self.vocabulary_from)["captioner"]["vocabulary"]
        captions = (tokenise(caption) for record in self._split("train") for caption in record.captions)
        return Vocabulary.build(captions, self.minimum_count, self.maximum_words).words

    def prepare_data(self) -> None:
        """Once on each machine, before the processes part: draw scenes, and fill the feature caches.

        That of crops only for training.
        """
        assert self.trainer is not None
        module: Any = self.trainer.lightning_module
        self.cache(module.encoder, self.trainer.strategy.root_device)
        if self.trainer.state.fn == "fit":
            self.cache_crops(module.encoder, self.trainer.strategy.root_device)

    def cache(self, encoder: Encoder, device: torch.device | str = "cpu") -> Features | None:
        """The feature cache of all splits, built if need be; None with an encoder that learns, now or later.

        If only its last blocks do, the cache has what goes into them.
        """
        return self._cache(self.records, encoder, device)

    def cache_crops(self, encoder: Encoder, device: torch.device | str = "cpu") -> Features | None:
        """The cache of random crops of the training pictures, built if need be; None if there are to be none."""
        return self._cache(self._split("train"), encoder, device, self.crops) if self.crops else None

    def _cache(
        self, records: Sequence[Record], encoder: Encoder, device: torch.device | str, crops: int = 0
    ) -> Features | None:
        blocks = self._learning_blocks()
        if self.features is None or not encoder.frozen or blocks == 0:
            for name, wanted in (("mirror", self.mirror), ("crops", self.crops)):
                if wanted:
                    raise CaptioningError(f"data.{name} needs the feature cache: a frozen encoder and data.features")
            return None
        encoder.to(device)
        sight = encoder if blocks is None else encoder.trunk(blocks)
        images = [record.image for record in records]
        return features.ensure(self.features, sight, images, self.mirror, device, crops=crops)

    def _learning_blocks(self) -> int | None:
        """How many of a frozen encoder's last blocks learn at some time; 0 for all of them, None for none."""
        trainer: Any = self.trainer  # mypy does not see its callbacks
        return next((callback.blocks for callback in trainer.callbacks if isinstance(callback, FineTuneEncoder)), None)

    def train_dataloader(self) -> ResumableLoader:
        return self._loader("train", self.seed)

    def val_dataloader(self) -> ResumableLoader:
        return self._loader("val")

    def test_dataloader(self) -> ResumableLoader:
        return self._loader("test")

    def predict_dataloader(self) -> ResumableLoader:
        return self._loader("test")

    def _split(self, name: str) -> list[Record]:
        records = [record for record in self.records if record.split == name]
        if not records:
            raise CaptioningError(f"{self.root}: has no pictures of split '{name}'; see data/README.md")
        return records

    def _loader(self, split: str, seed: int | None = None) -> ResumableLoader:
        assert self.trainer is not None
        module: Any = self.trainer.lightning_module  # a CaptioningModule, which imports this file
        rows = [row for row, record in enumerate(self.records) if record.split == split]
        pictures = CaptionedPictures(
            self._split(split),
            module.vocabulary,
            module.encoder.transform,
            self.in_memory,
            self.cache(module.encoder, module.device),
            rows,
            self.cache_crops(module.encoder, module.device) if split == "train" else None,
            self._learning_blocks() or 0,
        )
        size = self.batch_size if seed is not None else 4 * self.batch_size  # without gradients, more fit at once
        batches = LikeLengthBatches(
            pictures.lengths(),
            size,
            self.pool,
            seed,
            self.trainer.global_rank,
            self.trainer.world_size,
            pictures.copies() if seed is not None else None,
        )
        return ResumableLoader(
            pictures,
            batch_sampler=batches,
            collate_fn=_as_it_is,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            generator=torch.Generator(),  # else each epoch would take a number from the run's own randomness
        )
