from pathlib import Path

import torch

from captioning.datasets.batch import Batch, pad_captions
from captioning.datasets.record import Record
from captioning.datasets.view import View
from captioning.preprocessing.vocabulary import Vocabulary

BOS, EOS, PAD = Vocabulary.BOS_ID, Vocabulary.EOS_ID, Vocabulary.PAD_ID
CAPTIONS = [[[BOS, 7, 8, EOS], [BOS, 9, EOS]], [[BOS, 5, EOS]]]


def test_pad_captions_pads_tokens_and_missing_captions() -> None:
    token_ids, lengths = pad_captions(CAPTIONS)
    assert token_ids.tolist() == [
        [[BOS, 7, 8, EOS], [BOS, 9, EOS, PAD]],
        [[BOS, 5, EOS, PAD], [PAD, PAD, PAD, PAD]],
    ]
    assert token_ids.dtype == lengths.dtype == torch.long
    assert lengths.tolist() == [[3, 2], [2, 0]]


def test_batch_counts_captions_and_keeps_lengths_on_the_cpu() -> None:
    token_ids, lengths = pad_captions(CAPTIONS)
    records = [Record(Path(name), ("A dog.",), "train") for name in ("a.jpg", "b.jpg")]
    batch = Batch(None, torch.zeros(2, 4, 3, dtype=torch.float16), 1, token_ids, lengths, records, [View(), View()])
    assert batch.num_captions == 3
    moved = batch.to(torch.device("meta"))
    assert moved.pixels is None
    assert moved.features is not None
    assert moved.features.device.type == moved.token_ids.device.type == "meta"
    assert moved.lengths is lengths
    assert (moved.num_tail_blocks, moved.records) == (1, records)
