"""Throughput of the server with concurrent clients, relative to a single client.

``make bench-serve`` sends the same images to one server, alternately from one client and from many, and compares every
response with the caption of the Captioner. Alternating reduces the effect of noise in the timings.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.speed import write_photos
from captioning import Captioner


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--num-images", type=int, default=200, help="number of requests with one image each (default 200)"
    )
    parser.add_argument("--clients", type=int, default=16, help="number of concurrent clients (default 16)")
    parser.add_argument("--repeats", type=int, default=3, help="number of measurements (default 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        images = [path.read_bytes() for path in write_photos(Path(directory), options.num_images)]
    expected = [caption.text for caption in Captioner.from_pretrained()(images)]
    command = [sys.executable, "-m", "captioning", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = next(word for word in server.stdout.readline().split() if word.startswith("http"))
            send(url, images[: options.clients], options.clients)  # warm-up
            single_rates, concurrent_rates = [], []
            for _ in range(options.repeats):
                for clients, rates in ((1, single_rates), (options.clients, concurrent_rates)):
                    start = time.perf_counter()
                    captions = send(url, images, clients)
                    rates.append(len(images) / (time.perf_counter() - start))
                    num_wrong = sum(text != reference for text, reference in zip(captions, expected, strict=True))
                    print(f"{clients:3} clients: {rates[-1]:.1f} captions/s, {num_wrong} of {len(images)} wrong")
        finally:
            server.terminate()
    ratio = statistics.median(many / one for one, many in zip(single_rates, concurrent_rates, strict=True))
    print(f"{options.clients} clients: {ratio:.2f} times the throughput of one client")


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
