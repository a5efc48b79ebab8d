"""Batched beam search compared with a search of one image at a time, and the cost of CIDEr-D as a reward.

``make bench-beam-search`` prints both. The reference beam search processes one image at a time, copies its features
for each beam, and loops over the candidates in Python. Both use the same weights and should find the same captions.
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

from benchmarks.coco_reference_scores import synthetic_captions
from captioning import Captioner
from captioning.evaluation.metrics import CiderD
from captioning.generation import GenerationConfig
from captioning.generation.beam_search import beam_search
from captioning.models.decoder import Decoder, DecoderState, Memory
from captioning.preprocessing.vocabulary import Vocabulary

_PHOTOS = ("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "rocket.jpg")
_SUPPRESSED_IDS = [Vocabulary.PAD_ID, Vocabulary.BOS_ID, Vocabulary.UNK_ID]
_MAX_LENGTH = 20


@torch.no_grad()
def reference_beam_search(decoder: Decoder, features: Tensor, num_beams: int, max_length: int) -> list[int]:
    """Token ids of the most probable caption of one image (1, L, D), found by a conventional beam search."""
    memory, state = decoder.init_state(features.expand(num_beams, -1, -1).clone())
    beams = [([Vocabulary.BOS_ID], 0.0)]
    finished: list[tuple[list[int], float]] = []
    state = DecoderState(*(tensor[:1] for tensor in state))
    for length in range(1, max_length + 1):
        last_ids = torch.tensor([[token_ids[-1]] for token_ids, _ in beams])
        beam_memory = Memory(*(tensor[: len(beams)] for tensor in memory))
        log_probs, state, _ = decoder.step(last_ids, state, beam_memory)
        candidates = []
        for beam, (token_ids, score) in enumerate(beams):
            scores = log_probs[beam, 0].clone()
            scores[_SUPPRESSED_IDS] = -torch.inf
            if length == 1:
                scores[Vocabulary.EOS_ID] = -torch.inf
            best, next_ids = scores.topk(2 * num_beams)
            for log_prob, next_id in zip(best.tolist(), next_ids.tolist(), strict=True):
                candidates.append((score + log_prob, beam, [*token_ids, next_id]))
        candidates.sort(key=lambda candidate: candidate[0], reverse=True)
        finished += [(ids, score) for score, _, ids in candidates[:num_beams] if ids[-1] == Vocabulary.EOS_ID]
        live = [candidate for candidate in candidates[: 2 * num_beams] if candidate[2][-1] != Vocabulary.EOS_ID]
        live = live[:num_beams]
        beams = [(token_ids, score) for score, _, token_ids in live]
        state = DecoderState(*(tensor[[beam for _, beam, _ in live]] for tensor in state))
        if len(finished) >= num_beams and max(score for _, score in beams) <= max(score for _, score in finished):
            break
    best_ids = max(finished or beams, key=lambda hypothesis: hypothesis[1])[0]
    return [token_id for token_id in best_ids[1:] if token_id != Vocabulary.EOS_ID]


def example_images(num_images: int) -> Iterator[Image.Image]:
    """Crops of the photos of scikit-image. On noise instead of photos, captions would not end."""
    for index in range(num_images):
        photo = Image.open(Path(skimage.data_dir) / _PHOTOS[index % len(_PHOTOS)]).convert("RGB")
        width, height = photo.size
        left, top = (index // len(_PHOTOS)) * width // 40, (index // len(_PHOTOS)) * height // 40
        yield photo.crop((left, top, left + 3 * width // 4, top + 3 * height // 4))


def compare_searches(repeats: int, num_images: int, num_beams: int) -> None:
    """Print the time of both beam searches and the number of identical captions."""
    captioner = Captioner.from_pretrained(device="cpu")
    with torch.no_grad():
        pixels = [captioner.encoder.transform(image) for image in example_images(num_images)]
        features = captioner.encoder(torch.stack(pixels))  # (B, L, D)
    config = GenerationConfig(_MAX_LENGTH, num_beams=num_beams)
    batched_times, reference_times = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        batched = [hypotheses[0].token_ids for hypotheses in beam_search(config, captioner.decoder, features)]
        batched_times.append(time.perf_counter() - start)
        start = time.perf_counter()
        reference = [
            reference_beam_search(captioner.decoder, image_features[None], num_beams, _MAX_LENGTH)
            for image_features in features
        ]
        reference_times.append(time.perf_counter() - start)
    num_identical = sum(first == second for first, second in zip(batched, reference, strict=True))
    speedup = statistics.median(slow / fast for slow, fast in zip(reference_times, batched_times, strict=True))
    print(f"{num_beams} beams, {num_images} images: {num_identical} captions are identical")
    medians = statistics.median(batched_times), statistics.median(reference_times)
    print(f"batched {medians[0]:.3f} s, one image at a time {medians[1]:.3f} s: speedup {speedup:.1f}")


def time_cider_reward(repeats: int) -> None:
    """Print the time of CIDEr-D for five captions of each of 1000 images."""
    hypotheses, references = synthetic_captions()
    cider_d = CiderD(references)
    samples = [(words, image) for image, words in enumerate(hypotheses) for _ in range(5)]
    random.Random(0).shuffle(samples)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for words, image in samples:
            cider_d.score_against(words, [image])
        times.append(time.perf_counter() - start)
    print(f"CIDEr-D of {len(samples)} captions as a reward: {statistics.median(times):.2f} s on one core")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beam_search", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="number of measurements (default 5)")
    parser.add_argument("--num-images", type=int, default=32, help="batch size (default 32)")
    parser.add_argument("--num-beams", type=int, default=5, help="number of beams (default 5)")
    options = parser.parse_args()
    compare_searches(options.repeats, options.num_images, options.num_beams)
    time_cider_reward(options.repeats)


if __name__ == "__main__":
    main()
