"""Batched beam search against the usual one, and what CIDEr-D costs as a reward; one run, same weights, same captions.

``make bench-search`` prints both. The usual beam search takes one picture at a time, copies its annotations for each
beam and goes through its candidates one by one.
"""

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import skimage
import torch
from PIL import Image
from torch import Tensor

from benchmarks.coco import sentences
from captioning import Captioner, metrics, search
from captioning.decoder import Decoder, Memory, State
from captioning.search import Search
from captioning.text import Vocabulary

_PHOTOS = ("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "rocket.jpg")
_UNSAYABLE = (Vocabulary.PAD, Vocabulary.START, Vocabulary.UNKNOWN)


@torch.no_grad()
def usual_beam(decoder: Decoder, annotations: Tensor, size: int, maximum_length: int) -> list[int]:
    """The likeliest caption of one picture (1, L, D), as most implementations look for it."""
    memory, state = decoder.start(annotations.expand(size, -1, -1).clone())
    beams = [([Vocabulary.START], 0.0)]
    finished: list[tuple[list[int], float]] = []
    rows = State(*(part[:1] for part in state))
    for length in range(1, maximum_length + 1):
        count = len(beams)
        words = torch.tensor([[said[-1]] for said, _ in beams])
        own = Memory(memory.annotations[:count], memory.keys[:count])
        log_probabilities, rows, _ = decoder.step(words, rows, own)
        candidates = []
        for number, (said, total) in enumerate(beams):
            scores = log_probabilities[number, 0].clone()
            scores[list(_UNSAYABLE)] = -torch.inf
            if length == 1:
                scores[Vocabulary.END] = -torch.inf
            best, ids = scores.topk(2 * size)
            for chance, word in zip(best.tolist(), ids.tolist(), strict=True):
                candidates.append((total + chance, number, [*said, word]))
        candidates.sort(key=lambda candidate: candidate[0], reverse=True)
        ends = [one for one in candidates[:size] if one[2][-1] == Vocabulary.END]
        finished += [(said, total) for total, _, said in ends]
        going_on = [one for one in candidates[: 2 * size] if one[2][-1] != Vocabulary.END][:size]
        beams = [(said, total) for total, _, said in going_on]
        rows = State(*(part[[number for _, number, _ in going_on]] for part in rows))
        if len(finished) >= size and max(total for _, total in beams) <= max(total for _, total in finished):
            break
    best = max(finished or beams, key=lambda one: one[1])[0]
    return [word for word in best[1:] if word != Vocabulary.END]


def pictures(count: int) -> Iterator[Image.Image]:
    """Windows of the photos that scikit-image brings: of pictures, unlike of noise, captions come to an end."""
    for number in range(count):
        photo = Image.open(Path(skimage.data_dir) / _PHOTOS[number % len(_PHOTOS)]).convert("RGB")
        width, height = photo.size
        left, top = (number // len(_PHOTOS)) * width // 40, (number // len(_PHOTOS)) * height // 40
        yield photo.crop((left, top, left + 3 * width // 4, top + 3 * height // 4))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="how often each is measured (default 5)")
    parser.add_argument("--pictures", type=int, default=32)
    parser.add_argument("--beam", type=int, default=5)
    options = parser.parse_args()
    captioner = Captioner.load(device="cpu")
    with torch.no_grad():
        pixels = [captioner.encoder.transform(picture) for picture in pictures(options.pictures)]
        annotations = captioner.encoder(torch.stack(pixels))
    how = Search(20, beam=options.beam)
    batched, usual = [], []
    for _ in range(options.repeats):
        start = time.perf_counter()
        together = [found[0].words for found in search.beam(how, captioner.decoder, annotations)]
        batched.append(time.perf_counter() - start)
        start = time.perf_counter()
        alone = [usual_beam(captioner.decoder, one[None], options.beam, 20) for one in annotations]
        usual.append(time.perf_counter() - start)
    same = sum(one == other for one, other in zip(together, alone, strict=True))
    ratio = statistics.median(one / other for one, other in zip(usual, batched, strict=True))
    print(f"beam {options.beam} over {options.pictures} pictures: {same} captions are the same")
    medians = statistics.median(batched), statistics.median(usual)
    print(f"batched {medians[0]:.3f} s, one by one {medians[1]:.3f} s: {ratio:.1f} times faster")

    hypotheses, references = sentences()
    cider = metrics.CiderD(references)
    samples = [(words, picture) for picture, words in enumerate(hypotheses) for _ in range(5)]
    random.Random(0).shuffle(samples)
    took = []
    for _ in range(options.repeats):
        start = time.perf_counter()
        for words, picture in samples:
            cider.scores(words, [picture])
        took.append(time.perf_counter() - start)
    print(f"CIDEr-D of {len(samples)} captions as a reward: {statistics.median(took):.2f} s on one core")


if __name__ == "__main__":
    main()
