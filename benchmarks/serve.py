"""Many clients at once against one at a time: how much sooner the server answers, and whether it answers right.

``make bench-serve`` sends the same photos to one server, by turns from one client and from many. Every answer is
compared with what the Captioner itself says. Timings are noisy: both are measured several times, side by side.
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
    parser.add_argument("--requests", type=int, default=200, help="photos to send, one in each (default 200)")
    parser.add_argument("--clients", type=int, default=16, help="at once (default 16)")
    parser.add_argument("--repeats", type=int, default=3, help="how often each is measured (default 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        photos = [path.read_bytes() for path in write_photos(Path(folder), options.requests)]
    expected = [caption.text for caption in Captioner.load()(photos)]
    command = [sys.executable, "-m", "captioning", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(word for word in server.stdout.readline().split() if word.startswith("http"))
            send(address, photos[: options.clients], options.clients)  # the first ones take longer
            alone, together = [], []
            for _ in range(options.repeats):
                for clients, rates in ((1, alone), (options.clients, together)):
                    begin = time.perf_counter()
                    answers = send(address, photos, clients)
                    rates.append(len(photos) / (time.perf_counter() - begin))
                    wrong = sum(answer != caption for answer, caption in zip(answers, expected, strict=True))
                    print(f"{clients:3} at a time: {rates[-1]:.1f} captions per second, {wrong} of {len(photos)} wrong")
        finally:
            server.terminate()
    ratio = statistics.median(many / one for one, many in zip(alone, together, strict=True))
    print(f"{options.clients} clients at once get {ratio:.2f} times as many captions per second as one at a time")


def send(address: str, photos: Sequence[bytes], clients: int) -> list[str]:
    """The captions that the server has for photos which so many clients send, one after the other each."""
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda photo: caption(address, photo), photos))


def caption(address: str, photo: bytes) -> str:
    with urllib.request.urlopen(urllib.request.Request(f"{address}/v1/captions", photo), timeout=120) as answer:
        (described,) = json.load(answer)["captions"]
    return described["caption"]


if __name__ == "__main__":
    main()
