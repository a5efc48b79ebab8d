import re
from pathlib import Path

import pytest
import torch

from captioning.datasets import features, karpathy
from captioning.encoders import Encoder
from captioning.text import Vocabulary, tokenise
from captioning.training.data import CaptionedPictures, CaptioningData


@pytest.fixture
def pictures(drawn: Path) -> CaptionedPictures:
    records = karpathy.read(drawn)
    vocabulary = Vocabulary.build(tokenise(caption) for record in records for caption in record.captions)
    return CaptionedPictures(records, vocabulary, Encoder("tiny").transform)


def test_a_batch_holds_every_caption_of_its_pictures(pictures: CaptionedPictures) -> None:
    batch = pictures.__getitems__([4, 0, 9])
    assert batch.pixels.shape == (3, 3, 64, 64)
    vocabulary = Vocabulary.build(tokenise(text) for record in pictures.records for text in record.captions)
    for picture, record in enumerate(batch.records):
        said = {" ".join(vocabulary.decode(row)) for row in batch.words[picture].tolist()}
        assert said == {" ".join(tokenise(caption)) for caption in record.captions}
        for row, length in zip(batch.words[picture], batch.lengths[picture], strict=True):
            assert row[0] == Vocabulary.START
            assert row[length] == Vocabulary.END
            assert (row[length + 1 :] == Vocabulary.PAD).all()


def test_a_batch_belongs_to_its_pictures(pictures: CaptionedPictures) -> None:
    """Sorting by length must move pixels, words and records together."""
    batch = pictures.__getitems__([4, 0, 9])
    for number, record in enumerate(batch.records):
        alone = pictures.__getitems__([pictures.records.index(record)])
        torch.testing.assert_close(batch.pixels[number], alone.pixels[0])
        assert batch.words[number, :, : alone.words.shape[2]].tolist() == alone.words[0].tolist()


def test_pictures_with_fewer_captions_are_padded(drawn: Path) -> None:
    from dataclasses import replace

    records = karpathy.read(drawn)[:2]
    records[1] = replace(records[1], captions=records[1].captions[:2])
    pictures = CaptionedPictures(records, Vocabulary([*Vocabulary.MARKS, "a"]), Encoder("tiny").transform)
    batch = pictures.__getitems__([0, 1])
    assert sorted((batch.lengths > 0).sum(1).tolist()) == [2, 5]


def test_rare_words_are_left_out(drawn: Path) -> None:
    everything = CaptioningData(drawn).vocabulary
    frequent = CaptioningData(drawn, minimum_count=20).vocabulary
    assert 4 < len(frequent) < len(everything)


@pytest.fixture
def cached(drawn: Path, tmp_path: Path) -> CaptionedPictures:
    """All drawn scenes, with mirror images, from the cache; every other one in a split, which has crops too."""
    records = karpathy.read(drawn)
    encoder = Encoder("tiny", frozen=True)
    images = [record.image for record in records]
    cache = features.ensure(tmp_path, encoder, images, mirror=True)
    crops = features.ensure(tmp_path, encoder, images[::2], mirror=True, crops=3)
    vocabulary = Vocabulary.build(tokenise(caption) for record in records for caption in record.captions)
    rows = range(0, len(records), 2)
    return CaptionedPictures(records[::2], vocabulary, encoder.transform, features=cache, rows=rows, crops=crops)


def test_a_cached_batch_belongs_to_its_pictures(cached: CaptionedPictures) -> None:
    size = len(cached)
    batch = cached.__getitems__([3, 9 + size, 5 + 4 * size, 0])
    assert batch.pixels is None
    for number, record in enumerate(batch.records):
        index = cached.records.index(record)
        row = cached.rows[index] + (len(cached.features) if index == 9 else 0)
        expected = cached.crops[[5 + 2 * size]] if index == 5 else cached.features[[row]]
        assert torch.equal(batch.annotations[number], expected[0])
        said = {tuple(row.tolist()) for row in batch.words[number]}
        alone = {tuple(row.tolist()) for row in cached.__getitems__([index]).words[0]}
        assert {tuple(w for w in row if w) for row in said} == {tuple(w for w in row if w) for row in alone}


def test_pictures_of_which_left_or_right_is_said_are_never_mirrored(cached: CaptionedPictures) -> None:
    copies = cached.copies()  # the picture, its mirror image, a crop, a mirrored one, a crop
    for record, own in zip(cached.records, copies, strict=True):
        sided = re.search(r"\b(left|right)\b", " ".join(record.captions)) is not None
        assert own == ([0, 2, 4] if sided else [0, 1, 2, 3, 4])
    assert {len(own) for own in copies} == {3, 5}
