"""What is in a set of captioned pictures, in a page of text: ``captioning data PATH``."""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tqdm import tqdm

from captioning.datasets.records import Record
from captioning.errors import CaptioningError
from captioning.images import open_image
from captioning.text import tokenise

_SPLITS = ("train", "val", "test")


def summarise(records: Sequence[Record]) -> str:
    """Pictures, captions and lengths of each split, and how much of it a vocabulary would cover."""
    spoken = {
        split: [tokenise(caption) for record in records if record.split == split for caption in record.captions]
        for split in _split_names(records)
    }
    return "\n".join([*_sizes(records, spoken), "", *_coverage(spoken)])


def _split_names(records: Sequence[Record]) -> list[str]:
    there = {record.split for record in records}
    return [*(split for split in _SPLITS if split in there), *sorted(there - set(_SPLITS))]


def _sizes(records: Sequence[Record], spoken: dict[str, list[list[str]]]) -> Iterator[str]:
    yield f"{'split':8} {'pictures':>9} {'captions':>9} {'each':>6}   words in a caption: mean, middle 90 %, longest"
    for split, captions in spoken.items():
        pictures = sum(record.split == split for record in records)
        lengths = sorted(map(len, captions))
        low, high = (lengths[round(share * (len(lengths) - 1))] for share in (0.05, 0.95))
        mean = sum(lengths) / len(lengths)
        each = f"{len(captions) / pictures:.1f}"
        yield f"{split:8} {pictures:9d} {len(captions):9d} {each:>6}   {mean:.1f}, {low} to {high}, {lengths[-1]}"


def _coverage(spoken: dict[str, list[list[str]]]) -> Iterator[str]:
    if "train" not in spoken:
        yield "no training captions, so no vocabulary"
        return
    counts = Counter(word for caption in spoken["train"] for word in caption)
    others = [split for split in spoken if split != "train"]
    known_of = "".join(f" {f'known of {split}':>14}" for split in others)
    yield f"{'minimum_count':13} {'words':>7}{known_of}"
    for minimum in range(1, 7):
        known = {word for word, count in counts.items() if count >= minimum}
        shares = []
        for split in others:
            words = [word for caption in spoken[split] for word in caption]
            shares.append(f" {sum(word in known for word in words) / max(len(words), 1):14.1%}")
        yield f"{minimum:13d} {len(known):7d}{''.join(shares)}"


def unreadable(records: Sequence[Record]) -> list[CaptioningError]:
    """What is wrong with each picture that cannot be opened; all are opened, with a progress bar."""

    def check(record: Record) -> CaptioningError | None:
        try:
            open_image(record.image, 64)
        except CaptioningError as error:
            return error
        return None

    with ThreadPoolExecutor() as threads:
        checked = tqdm(threads.map(check, records), total=len(records), desc="opening", unit="picture", leave=False)
        return [error for error in checked if error]
