import re
from pathlib import Path

import pytest
import torch

from captioning.datasets.content_hash import hash_content
from captioning.datasets.readers import karpathy
from captioning.datasets.view import train_view_keys
from captioning.models.encoder import Encoder
from captioning.preprocessing.tokenizer import tokenize
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.training.caption_dataset import CaptionDataset, allowed_views
from captioning.training.datamodule import CaptionDataModule
from captioning.training.feature_cache import open_or_build
from captioning.training.sampler import SampleKey


@pytest.fixture
def dataset(drawn: Path) -> CaptionDataset:
    records = karpathy.read_records(drawn)
    vocabulary = Vocabulary.build(tokenize(caption) for record in records for caption in record.captions)
    return CaptionDataset(records, vocabulary, Encoder("tiny").transform)


def test_a_batch_contains_all_captions_of_its_images(dataset: CaptionDataset) -> None:
    batch = dataset.__getitems__([SampleKey(4), SampleKey(0), SampleKey(9)])
    assert batch.pixels.shape == (3, 3, 64, 64)
    vocabulary = Vocabulary.build(tokenize(text) for record in dataset.records for text in record.captions)
    for index, record in enumerate(batch.records):
        captions = {" ".join(vocabulary.decode(row)) for row in batch.token_ids[index].tolist()}
        assert captions == {" ".join(tokenize(caption)) for caption in record.captions}
        for row, length in zip(batch.token_ids[index], batch.lengths[index], strict=True):
            assert row[0] == Vocabulary.BOS_ID
            assert row[length] == Vocabulary.EOS_ID
            assert (row[length + 1 :] == Vocabulary.PAD_ID).all()


def test_pixels_tokens_and_records_stay_together(dataset: CaptionDataset) -> None:
    """Sorting by length reorders pixels, tokens and records together."""
    batch = dataset.__getitems__([SampleKey(4), SampleKey(0), SampleKey(9)])
    for number, record in enumerate(batch.records):
        alone = dataset.__getitems__([SampleKey(dataset.records.index(record))])
        torch.testing.assert_close(batch.pixels[number], alone.pixels[0])
        assert batch.token_ids[number, :, : alone.token_ids.shape[2]].tolist() == alone.token_ids[0].tolist()


def test_images_with_fewer_captions_are_padded(drawn: Path) -> None:
    from dataclasses import replace

    records = karpathy.read_records(drawn)[:2]
    records[1] = replace(records[1], captions=records[1].captions[:2])
    dataset = CaptionDataset(records, Vocabulary([*Vocabulary.SPECIAL_TOKENS, "a"]), Encoder("tiny").transform)
    batch = dataset.__getitems__([SampleKey(0), SampleKey(1)])
    assert sorted((batch.lengths > 0).sum(1).tolist()) == [2, 5]


def test_min_word_freq(drawn: Path) -> None:
    everything = CaptionDataModule(drawn).vocabulary
    frequent = CaptionDataModule(drawn, min_word_freq=20).vocabulary
    assert 4 < len(frequent) < len(everything)


@pytest.fixture
def cached(drawn: Path, tmp_path: Path) -> CaptionDataset:
    """Every other scene as a split, with flipped views and crops from the cache."""
    records = karpathy.read_records(drawn)[::2]
    encoder = Encoder("tiny", frozen=True)
    view_keys = train_view_keys(hflip=True, num_crops=3)
    images = [(record.image_path, view_keys) for record in records]
    cache = open_or_build(tmp_path, encoder, images)
    vocabulary = Vocabulary.build(tokenize(caption) for record in records for caption in record.captions)
    return CaptionDataset(records, vocabulary, encoder.transform, cache=cache, view_keys=view_keys)


def test_cached_features_belong_to_their_records(cached: CaptionDataset) -> None:
    batch = cached.__getitems__([SampleKey(3), SampleKey(9, 1), SampleKey(5, 3), SampleKey(0)])
    assert batch.pixels is None
    for number, record in enumerate(batch.records):
        index = cached.records.index(record)
        view_key = cached.view_keys[{9: 1, 5: 3}.get(index, 0)]
        content_hash = hash_content(record.image_path)
        assert torch.equal(batch.features[number], cached.cache.load([cached.cache.row(content_hash, view_key)])[0])
        assert batch.views[number] == view_key.locate(content_hash)
        captions = {tuple(row.tolist()) for row in batch.token_ids[number]}
        alone = {tuple(row.tolist()) for row in cached.__getitems__([SampleKey(index)]).token_ids[0]}
        assert {tuple(w for w in row if w) for row in captions} == {tuple(w for w in row if w) for row in alone}
    assert sorted(view.flipped for view in batch.views) == [False, False, True, True]


def test_images_with_direction_words_are_never_flipped(cached: CaptionDataset) -> None:
    # The image, flipped, a crop, a flipped crop, a crop.
    views = [allowed_views(record, cached.view_keys) for record in cached.records]
    for record, own in zip(cached.records, views, strict=True):
        has_direction = re.search(r"\b(left|right)\b", " ".join(record.captions)) is not None
        assert own == ([0, 2, 4] if has_direction else [0, 1, 2, 3, 4])
    assert {len(own) for own in views} == {3, 5}
