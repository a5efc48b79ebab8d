"""Pretrained models: file size and content, scores of meaningless images, attention maps, compact copies."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import skimage
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from captioning import Captioner
from captioning.cli.main import main
from captioning.models.checkpoint import read_model
from captioning.models.pretrained import DEFAULT_MODEL, PRETRAINED, resolve_model_path

IMAGE_DIR = Path(skimage.data_dir)


@pytest.fixture(scope="module", params=PRETRAINED)
def pretrained(request: pytest.FixtureRequest) -> Captioner:
    return Captioner.from_pretrained(request.param)


@pytest.mark.parametrize("name", PRETRAINED)
def test_file_is_compact(name: str) -> None:
    path = resolve_model_path(name)
    assert path.stat().st_size <= 25e6
    with safe_open(path, framework="pt") as file:
        json.loads(file.metadata()["captioning"])
    assert {tensor.dtype for tensor in load_file(path).values()} == {torch.float16}
    header = read_model(name).header
    assert header["encoder"]["weights"] == "pretrained"
    assert header["decoder"]["attention"] == name.split("-")[1]


def test_default_model(capsys: pytest.CaptureFixture[str]) -> None:
    photo = IMAGE_DIR / "chelsea.png"
    main(["caption", str(photo)])
    text = Captioner.from_pretrained(DEFAULT_MODEL)(photo).text
    assert capsys.readouterr().out == f"{photo}\t{text}\n"
    assert Captioner.from_pretrained()(photo).text == text


@pytest.fixture(scope="module")
def meaningless_images() -> list[Image.Image]:
    noise = np.random.default_rng(0).integers(0, 256, (3, 300, 400, 3), dtype=np.uint8)
    return [*map(Image.fromarray, noise), *(Image.new("RGB", (400, 300), color) for color in ("black", "white"))]


@pytest.mark.parametrize(("name", "bound"), [("flickr8k-soft", 0.454), ("flickr8k-hard", 0.36)])
def test_meaningless_images_score_low(name: str, bound: float, meaningless_images: list[Image.Image]) -> None:
    """The bounds are quantiles of the scores of Flickr8k's dev images: the first tenth (0.454) for the soft model, the
    median (0.37) for the hard model."""
    captions = Captioner.from_pretrained(name)(meaningless_images)
    assert all(caption.words for caption in captions)
    assert max(caption.score for caption in captions) < bound


def test_photos_of_people_score_higher(meaningless_images: list[Image.Image]) -> None:
    """Flickr8k consists of photos of people and dogs. Measured: 0.48 on average, noise at most 0.446."""
    captioner = Captioner.from_pretrained("flickr8k-soft")
    noise = max(caption.score for caption in captioner(meaningless_images))
    people = [caption.score for caption in captioner([IMAGE_DIR / "camera.png", IMAGE_DIR / "astronaut.png"])]
    assert min(people) > noise
    assert sum(people) / 2 > noise + 0.03


def test_attention_maps(pretrained: Captioner) -> None:
    caption = pretrained(IMAGE_DIR / "astronaut.png")
    assert caption.attention_maps.shape == (len(caption.words), *pretrained.encoder.grid_size)
    np.testing.assert_allclose(caption.attention_maps.sum((1, 2)), 1, rtol=1e-4)
    is_one_hot = bool((caption.attention_maps.max((1, 2)) == 1).all())
    assert is_one_hot == pretrained.decoder.is_hard


def test_compress_stores_generation_settings(tmp_path: Path) -> None:
    copy = tmp_path / "copy.safetensors"
    main(["compress", str(resolve_model_path(DEFAULT_MODEL)), str(copy), "--num-beams", "4", "--length-penalty", "0.3"])
    before, after = (Captioner.from_pretrained(source).generation for source in (DEFAULT_MODEL, copy))
    assert after == dataclasses.replace(before, num_beams=4, length_penalty=0.3)


def test_errors_of_compress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(resolve_model_path(DEFAULT_MODEL))
    for arguments, message in (
        ([model, str(tmp_path / "missing" / "x.safetensors")], "the model file cannot be written"),
        ([str(tmp_path / "missing.safetensors"), str(tmp_path / "x.safetensors")], "missing.safetensors"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(["compress", *arguments])
        assert caught.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
