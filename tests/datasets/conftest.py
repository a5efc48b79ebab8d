"""Pictures to lay out as the sources do."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

Pictures = Callable[..., None]


@pytest.fixture
def pictures(tmp_path: Path) -> Pictures:
    """Makes small pictures below the test's folder."""

    def make(*names: str) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / name)

    return make
