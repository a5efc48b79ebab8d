"""What several tests share: a small set of drawn scenes, and a captioner that has learnt nothing."""

from pathlib import Path

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
