"""Shared fixtures: a small synthetic dataset, an untrained captioner, a browser."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from captioning.captioner import Captioner
from captioning.datasets.synthetic import shapes
from captioning.models.decoder import Decoder
from captioning.models.encoder import Encoder
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.torchvision_compat import import_torchvision

import_torchvision()  # some tests import pytorch_lightning directly

# As root, Chromium has no sandbox; the camera is a test pattern.
CHROMIUM_ARGS = ["--no-sandbox", "--use-fake-device-for-media-stream"]
REPOSITORY = Path(__file__).parent.parent
WORDS = [
    "a",
    "the",
    "red",
    "green",
    "blue",
    "circle",
    "square",
    "triangle",
    "left",
    "of",
    "and",
    "is",
    "there",
    "large",
    "small",
]


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of exported encoders for the tests only."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a dataset of 60 synthetic scenes."""
    root = tmp_path_factory.mktemp("drawn") / "shapes"
    shapes.generate_dataset(root, num_images=60, seed=3)
    return root


@pytest.fixture
def captioner() -> Captioner:
    return make_captioner()


@pytest.fixture
def hard_captioner() -> Captioner:
    return make_captioner(attention="hard")


def make_captioner(**settings: Any) -> Captioner:
    """Random weights with a variance large enough for captions that differ between images."""
    torch.manual_seed(0)
    encoder = Encoder("tiny", frozen=False)
    settings = {"embedding_size": 16, "hidden_size": 32, "attention_size": 16, **settings}
    decoder = Decoder(len(WORDS) + 4, encoder.feature_size, 64, **settings)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(std=0.5)
        decoder.init_hidden.weight.normal_(std=5)  # captions then depend on the image
        decoder.init_cell.weight.normal_(std=5)
        for module in encoder.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 1.0  # the statistics come from one batch of noise
        encoder.train()(torch.randn(16, 3, 64, 64))
    return Captioner(encoder, decoder, Vocabulary([*Vocabulary.SPECIAL_TOKENS, *WORDS]), max_length=8)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """An image that is not square, with a rectangle on it."""
    path = tmp_path / "photo.jpg"
    image = Image.linear_gradient("L").resize((120, 80)).convert("RGB")
    image.paste((200, 30, 30), (10, 20, 40, 60))
    image.save(path)
    return path


@pytest.fixture(scope="module")  # not longer: its event loop interferes with other tests
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    api = pytest.importorskip("playwright.sync_api", reason="needs a browser driver: pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        yield chromium
        chromium.close()


@pytest.fixture
def browser_page(browser: Any) -> Iterator[Any]:
    """A new page; the test fails if a script on it raises an error."""
    context = browser.new_context()
    page = context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    yield page
    context.close()
    assert not failures
