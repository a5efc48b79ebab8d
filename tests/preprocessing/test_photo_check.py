import random
from pathlib import Path

import numpy as np
import pytest
import skimage
from PIL import Image, ImageDraw

from captioning.datasets.synthetic.scene import render, sample_scene
from captioning.preprocessing.photo_check import resembles_photo

PHOTOS = ("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "rocket.jpg")


@pytest.mark.parametrize("name", PHOTOS)
def test_photos(name: str) -> None:
    image = Image.open(Path(skimage.data_dir) / name).convert("RGB").resize((256, 256))
    assert resembles_photo(image)
    assert resembles_photo(image.point(lambda value: value // 4)), "a dark photo"
    assert resembles_photo(image.convert("L").convert("RGB"))


def test_uniform_images_noise_and_flat_drawings() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    drawing = Image.new("RGB", (256, 256), "white")
    ImageDraw.Draw(drawing).ellipse((40, 40, 200, 200), fill="red", outline="black", width=5)
    assert not resembles_photo(Image.fromarray(noise))
    assert not resembles_photo(drawing)
    for color in ("black", "gray", "white", "red"):
        assert not resembles_photo(Image.new("RGB", (256, 256), color))
    generator = random.Random(1)
    assert not any(resembles_photo(render(sample_scene(generator), 256)) for _ in range(10))
