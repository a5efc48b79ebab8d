"""Time and memory of each overlay format for a large image, and the size of the HTML page.

``make bench-overlay`` generates an image (12 megapixels by default) and a caption of 12 words, writes each format
several times in a new process, and reports medians. The time includes decoding the image.
"""

import argparse
import base64
import dataclasses
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from captioning import Caption
from captioning.preprocessing.image import Box
from captioning.visualization.export import OverlayWriter
from captioning.visualization.formats import FORMATS

WORDS = "a large brown dog is running through the snow near the trees".split()
NUM_CAPTIONS = 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlay", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="number of measurements per format (default 5)")
    parser.add_argument(
        "--megapixels", type=float, default=12, help="size of the image, with the aspect ratio 4:3 (default 12)"
    )
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS, help="default: all")
    parser.add_argument(
        "--once", nargs=2, metavar=("FORMAT", "IMAGE"), help="measure one format in this process and print JSON"
    )
    options = parser.parse_args()
    if options.once:
        print(json.dumps(measure(options.once[0], Path(options.once[1]))))
        return
    with tempfile.TemporaryDirectory() as directory:
        image_path = write_image(Path(directory) / "photo.jpg", options.megapixels)
        for name in options.formats:
            command = [sys.executable, "-m", "benchmarks.overlay", "--once", name, str(image_path)]
            runs = [json.loads(subprocess.check_output(command)) for _ in range(options.repeats)]
            seconds, baseline, peak = (
                statistics.median(run[key] for run in runs) for key in ("seconds", "baseline", "peak")
            )
            print(
                f"{name:6}  {seconds:6.2f} s   peak memory {peak:4.0f} MB, of which {baseline:.0f} MB imports", end=""
            )
            print(f"   {runs[0]['overhead'] / 1e3:.0f} kB without the image" if name == "html" else "")


def write_image(path: Path, megapixels: float) -> Path:
    """Write multi-scale noise, which takes as long to decode and encode as a photo."""
    height = round((megapixels * 1e6 * 3 / 4) ** 0.5)
    size = (round(height * 4 / 3), height)
    rng = np.random.default_rng(0)
    total = np.zeros((size[1], size[0], 3), np.float32)
    for side in (4, 16, 64, 256, 1024):
        noise = rng.integers(0, 256, (side, side, 3)).astype(np.uint8)
        total += np.asarray(Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC), np.float32) / 5
    Image.fromarray(total.astype(np.uint8)).save(path, quality=90)
    return path


def measure(name: str, image_path: Path) -> dict[str, float]:
    """Measure one export: seconds, memory before and at the peak in MB, bytes of the page without the image."""
    attention_maps = (
        np.random.default_rng(1).dirichlet(np.full(64, 0.3), len(WORDS)).reshape(-1, 8, 8).astype(np.float32)
    )
    caption = Caption(WORDS, [0.5] * (len(WORDS) + 1), attention_maps, image_path, Box(0, 0, 1, 1))
    caption = dataclasses.replace(caption, alternatives=(caption,) * (NUM_CAPTIONS - 1))
    baseline = peak_memory()
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        OverlayWriter(Path(directory), [image_path], [name]).write(image_path, caption)
        seconds = time.perf_counter() - start
        overhead = page_overhead(Path(directory) / "photo.html") if name == "html" else 0
    return {"seconds": seconds, "baseline": baseline, "peak": peak_memory(), "overhead": overhead}


def peak_memory() -> float:
    """Peak memory of this process in MB; getrusage would include that of the parent process."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


def page_overhead(page: Path) -> int:
    """Size of the page in bytes without the embedded image."""
    content = page.read_bytes()
    image = re.search(rb"base64,([A-Za-z0-9+/=]+)", content)
    assert image is not None
    return len(content) - len(base64.b64decode(image[1]))


if __name__ == "__main__":
    main()
