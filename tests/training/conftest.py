"""A config that trains in seconds."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from captioning.cli.main import main
from tests.conftest import REPOSITORY

Fit = Callable[..., Path]


@pytest.fixture
def config(drawn: Path, tmp_path: Path) -> Path:
    """The shapes recipe with a small model: two epochs over 60 scenes."""
    settings = yaml.safe_load((REPOSITORY / "configs" / "shapes-soft.yaml").read_text())
    cache_dir = str(tmp_path / "features")
    settings["data"].update(root=str(drawn), num_scenes=60, seed=3, batch_size=8, feature_cache_dir=cache_dir)
    settings["model"]["decoder"].update(embedding_size=16, hidden_size=32, attention_size=16, dropout=0.2)
    settings["model"]["generation"] = {"max_length": 12}
    settings["trainer"].update(max_epochs=2, enable_progress_bar=False, enable_model_summary=False)
    settings["trainer"]["logger"]["init_args"].update(save_dir=str(tmp_path / "runs"), name="test", version="run")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture
def fit(config: Path, tmp_path: Path) -> Fit:
    """Train with the config and return the run directory; ``version`` is its name."""

    def run(*arguments: str, version: str = "run") -> Path:
        main(["fit", "--config", str(config), "--trainer.logger.init_args.version", version, *arguments])
        return tmp_path / "runs" / "test" / version

    return run
