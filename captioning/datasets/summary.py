"""Text summary of a dataset, printed by ``captioning inspect-data``."""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tqdm import tqdm

from captioning.datasets.record import Record
from captioning.preprocessing.image import open_image
from captioning.preprocessing.tokenizer import tokenize
from captioning.utils.errors import CaptioningError

_SPLITS = ("train", "val", "test")
_MAX_MIN_WORD_FREQ = 6


def summarize(records: Sequence[Record]) -> str:
    """Return a table of the size and caption lengths of each split, and a table of the vocabulary coverage."""
    tokenized = {
        split: [tokenize(caption) for record in records if record.split == split for caption in record.captions]
        for split in _split_names(records)
    }
    return "\n".join([*_size_table(records, tokenized), "", *_coverage_table(tokenized)])


def _split_names(records: Sequence[Record]) -> list[str]:
    names = {record.split for record in records}
    return [*(split for split in _SPLITS if split in names), *sorted(names - set(_SPLITS))]


def _size_table(records: Sequence[Record], tokenized: dict[str, list[list[str]]]) -> Iterator[str]:
    yield f"{'split':8} {'images':>9} {'captions':>9} {'each':>6}   words per caption: mean, 5 % to 95 %, maximum"
    for split, captions in tokenized.items():
        num_images = sum(record.split == split for record in records)
        lengths = sorted(map(len, captions))
        low, high = (lengths[round(quantile * (len(lengths) - 1))] for quantile in (0.05, 0.95))
        mean = sum(lengths) / len(lengths)
        each = f"{len(captions) / num_images:.1f}"
        yield f"{split:8} {num_images:9d} {len(captions):9d} {each:>6}   {mean:.1f}, {low} to {high}, {lengths[-1]}"


def _coverage_table(tokenized: dict[str, list[list[str]]]) -> Iterator[str]:
    if "train" not in tokenized:
        yield "no train captions, so no vocabulary"
        return
    counts = Counter(word for caption in tokenized["train"] for word in caption)
    held_out = [split for split in tokenized if split != "train"]
    headers = "".join(f" {f'{split} coverage':>14}" for split in held_out)
    yield f"{'min_word_freq':13} {'words':>7}{headers}"
    for min_freq in range(1, _MAX_MIN_WORD_FREQ + 1):
        vocabulary = {word for word, count in counts.items() if count >= min_freq}
        cells = "".join(f" {_coverage(vocabulary, tokenized[split]):14.1%}" for split in held_out)
        yield f"{min_freq:13d} {len(vocabulary):7d}{cells}"


def _coverage(vocabulary: set[str], captions: list[list[str]]) -> float:
    """Fraction of the words of ``captions`` that are in ``vocabulary``."""
    words = [word for caption in captions for word in caption]
    return sum(word in vocabulary for word in words) / max(len(words), 1)


def find_unreadable_images(records: Sequence[Record]) -> list[CaptioningError]:
    """Open all images, with a progress bar, and return one error for each that cannot be opened."""

    def check(record: Record) -> CaptioningError | None:
        try:
            open_image(record.image_path, min_side=64)
        except CaptioningError as error:
            return error
        return None

    with ThreadPoolExecutor() as executor:
        results = executor.map(check, records)
        progress = tqdm(results, total=len(records), desc="opening", unit="image", leave=False)
        return [error for error in progress if error]
