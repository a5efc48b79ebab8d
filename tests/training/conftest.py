"""A config small enough to train in seconds."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from captioning.cli import main
from tests.conftest import REPOSITORY

Fit = Callable[..., Path]


@pytest.fixture
def config(drawn: Path, tmp_path: Path) -> Path:
    """The shipped recipe, cut down: two epochs over 60 scenes."""
    settings = yaml.safe_load((REPOSITORY / "configs" / "shapes-soft.yaml").read_text())
    settings["data"].update(root=str(drawn), scenes=60, seed=3, batch_size=8, features=str(tmp_path / "features"))
    settings["model"].update(
        embedding_size=16, hidden_size=32, attention_size=16, dropout=0.2, search={"maximum_length": 12}
    )
    settings["trainer"].update(max_epochs=2, enable_progress_bar=False, enable_model_summary=False)
    settings["trainer"]["logger"]["init_args"].update(save_dir=str(tmp_path / "runs"), name="test", version="run")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture
def fit(config: Path, tmp_path: Path) -> Fit:
    """Train by the config and give back the run's folder; ``version`` names it."""

    def run(*arguments: str, version: str = "run") -> Path:
        main(["fit", "--config", str(config), "--trainer.logger.init_args.version", version, *arguments])
        return tmp_path / "runs" / "test" / version

    return run
