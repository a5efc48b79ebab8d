"""What several tests share: a small set of drawn scenes, a captioner that has learnt nothing, a browser."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from captioning.captioner import Captioner
from captioning.datasets import shapes
from captioning.decoder import Decoder
from captioning.encoders import Encoder
from captioning.text import Vocabulary
from captioning.torchvision_cure import import_torchvision

import_torchvision()  # some tests import pytorch_lightning by themselves

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


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 60 drawn scenes."""
    root = tmp_path_factory.mktemp("drawn") / "shapes"
    shapes.write(root, images=60, seed=3)
    return root


@pytest.fixture
def captioner() -> Captioner:
    return make_captioner()


@pytest.fixture
def hard_captioner() -> Captioner:
    return make_captioner(attention="hard")


def make_captioner(**settings) -> Captioner:
    """Random weights, drawn wide enough that it says something."""
    torch.manual_seed(0)
    encoder = Encoder("tiny")
    sizes = {"embedding_size": 16, "hidden_size": 32, "attention_size": 16}
    decoder = Decoder(len(WORDS) + 4, encoder.width, 64, **sizes, **settings)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(std=0.5)
        decoder.start_hidden.weight.normal_(std=5)  # so that what it says depends on the picture
        decoder.start_cell.weight.normal_(std=5)
        for module in encoder.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 1.0  # one batch of noise is all it will ever see
        encoder.train()(torch.randn(16, 3, 64, 64))
    return Captioner(encoder, decoder, Vocabulary([*Vocabulary.MARKS, *WORDS]), maximum_length=8)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A picture that is not square, with something on it."""
    path = tmp_path / "photo.jpg"
    image = Image.linear_gradient("L").resize((120, 80)).convert("RGB")
    image.paste((200, 30, 30), (10, 20, 40, 60))
    image.save(path)
    return path


@pytest.fixture(scope="module")  # no longer: while it lives, an event loop runs that other tests could stumble over
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    api = pytest.importorskip("playwright.sync_api", reason="needs a browser's driver: pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def browser_page(browser: Any) -> Iterator[Any]:
    """A fresh page; the test fails if a script on it does."""
    context = browser.new_context()
    page = context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    yield page
    context.close()
    assert not failures
