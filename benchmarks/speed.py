"""How long captions of photos take: one from a cold start, and in a folder what decoding adds to the CNN.

``make bench-speed`` prints both, with the model that comes along. Timings are noisy: everything is measured several
times, side by side, and the medians are told.
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

from captioning import Captioner, search
from captioning.images import open_image

PHOTOS = ("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "rocket.jpg")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="how often each is measured (default 5)")
    parser.add_argument("--photos", type=int, default=200, help="size of the folder (default 200)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        photos = write_photos(Path(folder), options.photos)
        print(f"one photo, cold: {median(lambda: caption_cold(photos[0]), options.repeats):.2f} s")
        captioner = Captioner.load(beam=3)
        seeing, decoding = [], []
        for _ in range(options.repeats):
            begin = time.perf_counter()
            annotations = see(captioner, photos)
            middle = time.perf_counter()
            decode(captioner, annotations)
            seeing.append(middle - begin)
            decoding.append(time.perf_counter() - middle)
        whole = median(lambda: captioner(photos), options.repeats)
    share = statistics.median(spent / before for before, spent in zip(seeing, decoding, strict=True))
    print(f"{len(photos)} photos, opened and seen: {statistics.median(seeing):.2f} s")
    print(f"decoding with beam {captioner.search.beam} adds {statistics.median(decoding):.2f} s, {share:.0%}")
    print(f"all of it by Captioner: {whole:.2f} s")


def write_photos(folder: Path, count: int) -> list[Path]:
    """JPEGs of a size as photos of Flickr have, cut at different places from those that scikit-image brings along."""
    originals = [open_image(Path(skimage.data_dir) / name) for name in PHOTOS]
    paths = []
    for number in range(count):
        image = originals[number % len(originals)]
        edge = number // len(originals)
        part = image.crop((edge, edge, image.width - edge, image.height - edge))
        paths.append(folder / f"{number:03}.jpg")
        part.resize((500, 375), Image.Resampling.BICUBIC).save(paths[-1])
    return paths


def caption_cold(photo: Path) -> None:
    subprocess.run([sys.executable, "-m", "captioning", "caption", str(photo)], check=True, capture_output=True)


def see(captioner: Captioner, photos: list[Path]) -> list[torch.Tensor]:
    """As Captioner does: some at a time."""
    transform = captioner.encoder.transform
    encoder = captioner.encoder.for_inference()
    seen = []
    with torch.inference_mode():
        for first in range(0, len(photos), 32):
            opened = [transform(open_image(photo, transform.size)) for photo in photos[first : first + 32]]
            seen.append(encoder(torch.stack(opened)))
    return seen


def decode(captioner: Captioner, annotations: list[torch.Tensor]) -> None:
    for batch in annotations:
        search.beam(captioner.search, captioner.decoder, batch)


def median(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


if __name__ == "__main__":
    main()
