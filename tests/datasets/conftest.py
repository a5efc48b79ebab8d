"""Small images in the layouts of the datasets."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

MakeImages = Callable[..., None]


@pytest.fixture
def make_images(tmp_path: Path) -> MakeImages:
    """Create small images below ``tmp_path``."""

    def make(*names: str) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / name)

    return make
