"""Time per caption: one image from a cold start, and for a directory the cost of decoding relative to the CNN.

``make bench-speed`` prints both for the default model. Timings are noisy, so the alternatives are measured several
times in alternation, and the medians are reported.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import skimage
import torch
from PIL import Image

from captioning import Captioner
from captioning.generation.beam_search import beam_search
from captioning.models.engine import inference_engine
from captioning.preprocessing.image import open_image

_PHOTOS = ("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "rocket.jpg")
_BATCH_SIZE = 32


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="number of measurements (default 5)")
    parser.add_argument("--num-images", type=int, default=200, help="number of images in the directory (default 200)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        paths = write_images(Path(directory), options.num_images)
        print(f"one image, cold start: {median_time(lambda: caption_cold(paths[0]), options.repeats):.2f} s")
        captioner = Captioner.from_pretrained(num_beams=3)
        encoding_times, decoding_times = [], []
        for _ in range(options.repeats):
            start = time.perf_counter()
            features = encode(captioner, paths)
            encoded = time.perf_counter()
            decode(captioner, features)
            encoding_times.append(encoded - start)
            decoding_times.append(time.perf_counter() - encoded)
        total = median_time(lambda: captioner(paths), options.repeats)
    ratio = statistics.median(dec / enc for enc, dec in zip(encoding_times, decoding_times, strict=True))
    num_beams = captioner.generation.num_beams
    print(f"{len(paths)} images, opening and encoding: {statistics.median(encoding_times):.2f} s")
    print(f"decoding with {num_beams} beams adds {statistics.median(decoding_times):.2f} s, {ratio:.0%}")
    print(f"Captioner, in total: {total:.2f} s")


def write_images(directory: Path, num_images: int) -> list[Path]:
    """Write JPEGs of the usual size of Flickr photos: different crops of the photos of scikit-image."""
    photos = [open_image(Path(skimage.data_dir) / name) for name in _PHOTOS]
    paths = []
    for index in range(num_images):
        photo = photos[index % len(photos)]
        margin = index // len(photos)
        crop = photo.crop((margin, margin, photo.width - margin, photo.height - margin))
        paths.append(directory / f"{index:03}.jpg")
        crop.resize((500, 375), Image.Resampling.BICUBIC).save(paths[-1])
    return paths


def caption_cold(path: Path) -> None:
    """Caption one image in a new process."""
    subprocess.run([sys.executable, "-m", "captioning", "caption", str(path)], check=True, capture_output=True)


def encode(captioner: Captioner, paths: list[Path]) -> list[torch.Tensor]:
    """Features (B, L, D) of each batch, computed as in Captioner."""
    transform = captioner.encoder.transform
    encoder = inference_engine(captioner.encoder)
    features = []
    with torch.inference_mode():
        for first in range(0, len(paths), _BATCH_SIZE):
            batch = paths[first : first + _BATCH_SIZE]
            pixels = [transform(open_image(path, transform.image_size)) for path in batch]
            features.append(encoder(torch.stack(pixels)))
    return features


def decode(captioner: Captioner, batches: list[torch.Tensor]) -> None:
    for features in batches:
        beam_search(captioner.generation, captioner.decoder, features)


def median_time(function: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
