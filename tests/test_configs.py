"""The recipes for photos run as they are, on a few synthetic images for one batch, with a smaller decoder."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from captioning.captioner import Captioner
from captioning.cli.main import main
from captioning.datasets.synthetic import shapes
from captioning.models.pretrained import list_pretrained
from tests.conftest import REPOSITORY, make_captioner

SMALL = ["--model.decoder.embedding_size", "32", "--model.decoder.hidden_size", "32"]
# torchvision's weights are a download
NO_DOWNLOAD = {"xu2015": ["--model.encoder.weights", "random", "--model.encoder.image_size", "32"]}
FASTER = {"photos": ["--model.encoder.image_size", "64"]}
ONE_BATCH = [
    *("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1", "--trainer.check_val_every_n_epoch", "1"),
    *("--trainer.val_check_interval", "1.0", "--trainer.enable_progress_bar", "false"),
]
RECIPES = sorted(path.stem for path in (REPOSITORY / "configs").glob("*.yaml") if not path.stem.startswith("shapes"))


def data_roots(settings: dict[str, Any]) -> list[str]:
    """Names of the datasets of a recipe."""
    root = settings["data"]["root"]
    entries = root if isinstance(root, list) else [root]
    return [entry["root"] if isinstance(entry, dict) else entry for entry in entries]


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_runs(name: str, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets are found below CAPTIONING_DATA_DIR, and the run leaves a model file that captions images."""
    settings = yaml.safe_load((REPOSITORY / "configs" / f"{name}.yaml").read_text())
    data_dir = tmp_path / "data-sets"
    data_dir.mkdir()
    for number, root in enumerate(data_roots(settings)):
        if number == 0:
            (data_dir / root).symlink_to(drawn)
        else:  # other images
            shapes.generate_dataset(data_dir / root, num_images=30, seed=10 + number)
    monkeypatch.setenv("CAPTIONING_DATA_DIR", str(data_dir))
    monkeypatch.chdir(tmp_path)
    arguments = ["--config", str(REPOSITORY / "configs" / f"{name}.yaml"), *ONE_BATCH]
    if settings["model"].get("init_from") is None:
        family = name.partition("-")[0]
        arguments += [*SMALL, *NO_DOWNLOAD.get(family, []), *FASTER.get(family, [])]
    elif settings["model"]["init_from"] not in list_pretrained():  # the result of another recipe
        make_captioner().save(tmp_path / "initial.safetensors")
        arguments += ["--model.init_from", str(tmp_path / "initial.safetensors"), "--model.encoder.frozen", "true"]
    main(["fit", *arguments])
    captioner = Captioner.from_pretrained(tmp_path / "runs" / name / "version_0" / "checkpoints" / "best.safetensors")
    for setting, value in settings["model"].get("generation", {}).items():
        assert getattr(captioner.generation, setting) == value
    assert captioner(next((drawn / "images").iterdir())).words


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_run_directory_has_the_name_of_the_recipe(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["trainer"]["logger"]["init_args"]["name"] == path.stem
