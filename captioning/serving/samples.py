"""Sample images of the page: synthetic scenes, and the public-domain images of scikit-image if it is installed."""

import functools
import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from captioning.datasets.synthetic.scene import render, sample_scene
from captioning.preprocessing.image import open_image
from captioning.visualization.encoding import encode_jpeg

_PHOTOS = {
    "astronaut.png": "an astronaut",
    "chelsea.png": "a cat",
    "rocket.jpg": "a rocket",
    "coffee.png": "a cup of coffee",
    "camera.png": "a man with a camera",
}
_SCENE_SEEDS = (0, 2, 15)
_SCENE_SIZE = 320
_MAX_PHOTO_SIDE = 800


class Sample(NamedTuple):
    """A sample image: what it shows, and a function that returns it as JPEG."""

    title: str
    read_jpeg: Callable[[], bytes]


def find_samples() -> dict[str, Sample]:
    """Return the samples by name. Images are read or rendered when they are requested for the first time."""
    spec = importlib.util.find_spec("skimage")
    data_dir = Path(spec.origin).parent / "data" if spec and spec.origin else None
    samples = {}
    for name, title in _PHOTOS.items():
        if data_dir and (data_dir / name).is_file():
            samples[f"{Path(name).stem}.jpg"] = Sample(
                title, functools.cache(functools.partial(_read, data_dir / name))
            )
    for number, seed in enumerate(_SCENE_SEEDS, start=1):
        samples[f"scene-{number}.jpg"] = Sample(
            f"synthetic scene {number}", functools.cache(functools.partial(_render, seed))
        )
    return samples


def _read(path: Path) -> bytes:
    return encode_jpeg(open_image(path), _MAX_PHOTO_SIDE)


def _render(seed: int) -> bytes:
    return encode_jpeg(render(sample_scene(random.Random(seed)), _SCENE_SIZE), _SCENE_SIZE)
