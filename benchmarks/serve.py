"""Throughput of the server with concurrent clients, relative to a single client, and live captions of a camera.

``make bench-serve`` sends the same images to one server, alternately from one client and from many, and compares every
response with the caption of the Captioner. Alternating reduces the effect of noise in the timings.
``python -m benchmarks.serve --live`` sends camera frames like the page does: the next frame is sent when the caption of
the last one has arrived. It reports captions per second and the delay from the frame to its words and maps.
"""

import argparse
import contextlib
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image, ImageOps

from benchmarks.speed import write_images
from captioning import Captioner
from captioning.models.pretrained import DEFAULT_MODEL

FRAME_SIDE = 480  # pixels, as in captioning/serving/static/camera.js


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--num-images", type=int, default=200, help="number of requests with one image each (default 200)"
    )
    parser.add_argument("--clients", type=int, default=16, help="number of concurrent clients (default 16)")
    parser.add_argument("--repeats", type=int, default=3, help="number of measurements (default 3)")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="pretrained model or model file (default %(default)s)")
    parser.add_argument("--live", action="store_true", help="measure live captions instead")
    options = parser.parse_args()
    if options.live:
        with running_server(options.model) as url:
            measure_live(url, options.num_images)
        return
    with tempfile.TemporaryDirectory() as directory:
        images = [path.read_bytes() for path in write_images(Path(directory), options.num_images)]
    expected = [caption.text for caption in Captioner.from_pretrained(options.model)(images)]
    with running_server(options.model) as url:
        send(url, images[: options.clients], options.clients)  # warm-up
        single_rates, concurrent_rates = [], []
        for _ in range(options.repeats):
            for clients, rates in ((1, single_rates), (options.clients, concurrent_rates)):
                start = time.perf_counter()
                captions = send(url, images, clients)
                rates.append(len(images) / (time.perf_counter() - start))
                num_wrong = sum(text != reference for text, reference in zip(captions, expected, strict=True))
                print(f"{clients:3} clients: {rates[-1]:.1f} captions/s, {num_wrong} of {len(images)} wrong")
    ratio = statistics.median(many / one for one, many in zip(single_rates, concurrent_rates, strict=True))
    print(f"{options.clients} clients: {ratio:.2f} times the throughput of one client")


@contextlib.contextmanager
def running_server(model: str) -> Iterator[str]:
    """Start a server with a model and yield its URL."""
    command = [sys.executable, "-m", "captioning", "serve", "--port", "0", "--model", model]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            yield next(word for word in server.stdout.readline().split() if word.startswith("http"))
        finally:
            server.terminate()


def measure_live(url: str, num_frames: int) -> None:
    """Send frames of the size and quality of the page, one at a time, and print rate and delay."""
    with tempfile.TemporaryDirectory() as directory:
        frames = [to_frame(path) for path in write_images(Path(directory), min(num_frames, 20))]
    for frame in frames[:3]:
        request_caption(url, frame)  # warm-up
    delays = []
    for index in range(num_frames):
        start = time.perf_counter()
        request_caption(url, frames[index % len(frames)])
        delays.append(time.perf_counter() - start)
    print(f"{num_frames / sum(delays):.1f} live captions/s")
    slowest = statistics.quantiles(delays, n=20)[-1]
    print(f"delay from frame to words: median {1000 * statistics.median(delays):.0f} ms, 95 % {1000 * slowest:.0f} ms")


def to_frame(path: Path) -> bytes:
    buffer = io.BytesIO()
    with Image.open(path) as image:
        ImageOps.contain(image.convert("RGB"), (FRAME_SIDE, FRAME_SIDE)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def send(url: str, images: Sequence[bytes], num_clients: int) -> list[str]:
    """Send all images from ``num_clients`` threads and return their captions."""
    with ThreadPoolExecutor(num_clients) as pool:
        return list(pool.map(lambda image: request_caption(url, image), images))


def request_caption(url: str, image: bytes) -> str:
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/captions", image), timeout=120) as response:
        (fields,) = json.load(response)["captions"]
    return fields["caption"]


if __name__ == "__main__":
    main()
