"""What overlays of a large photo take: seconds and memory of each kind, and the size of the page.

``make bench-overlay`` draws a photo of 12 megapixels, gives it 12 words with maps, and writes it in each format in a
process of its own, several times; the medians are told. The photo is decoded each time, as for a user.
"""

import argparse
import base64
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
from captioning.export import FORMATS, Export
from captioning.images import Box

SIZE = (4000, 3000)
WORDS = "a large brown dog is running through the snow near the trees".split()
CAPTIONS = 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlay", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="how often each is measured (default 5)")
    parser.add_argument("--once", nargs=2, metavar=("FORMAT", "PHOTO"), help="measure one here, and print JSON")
    options = parser.parse_args()
    if options.once:
        print(json.dumps(measure(options.once[0], Path(options.once[1]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        photo = write_photo(Path(folder) / "photo.jpg")
        for name in FORMATS:
            command = [sys.executable, "-m", "benchmarks.overlay", "--once", name, str(photo)]
            runs = [json.loads(subprocess.check_output(command)) for _ in range(options.repeats)]
            seconds, before, peak = (
                statistics.median(run[key] for run in runs) for key in ("seconds", "before", "peak")
            )
            print(
                f"{name:5}  {seconds:6.2f} s   {peak:4.0f} MB at the peak, of which {before:.0f} MB are imports", end=""
            )
            print(f"   {runs[0]['beyond'] / 1e3:.0f} kB beyond the photo" if name == "html" else "")


def write_photo(path: Path) -> Path:
    """Noise of all sizes, which takes as long to decode and to encode as a photo does."""
    chance = np.random.default_rng(0)
    total = np.zeros((SIZE[1], SIZE[0], 3), np.float32)
    for side in (4, 16, 64, 256, 1024):
        noise = chance.integers(0, 256, (side, side, 3)).astype(np.uint8)
        total += np.asarray(Image.fromarray(noise).resize(SIZE, Image.Resampling.BICUBIC), np.float32) / 5
    Image.fromarray(total.astype(np.uint8)).save(path, quality=90)
    return path


def measure(name: str, photo: Path) -> dict[str, float]:
    """Seconds of one export, the process's memory before and at its peak in MB, the page's bytes beyond the photo."""
    maps = np.random.default_rng(1).dirichlet(np.full(64, 0.3), len(WORDS)).reshape(-1, 8, 8).astype(np.float32)
    caption = Caption(WORDS, [0.5] * (len(WORDS) + 1), maps, photo, Box(0, 0, 1, 1))
    others = (caption,) * (CAPTIONS - 1)
    caption = Caption(WORDS, caption.probabilities, maps, photo, caption.window, others=others)
    before = memory()
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        export = Export(Path(folder), [photo], [name])
        export.write(photo, caption)
        seconds = time.perf_counter() - begin
        beyond = bytes_beyond_the_photo(Path(folder) / "photo.html") if name == "html" else 0
    return {"seconds": seconds, "before": before, "peak": memory(), "beyond": beyond}


def memory() -> float:
    """The most that this process has held so far, in MB; getrusage would count what its parent held."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


def bytes_beyond_the_photo(page: Path) -> int:
    content = page.read_bytes()
    photo = re.search(rb"base64,([A-Za-z0-9+/=]+)", content)
    assert photo is not None
    return len(content) - len(base64.b64decode(photo[1]))


if __name__ == "__main__":
    main()
