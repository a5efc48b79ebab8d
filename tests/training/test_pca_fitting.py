from pathlib import Path

import pytest
import torch

from captioning.captioner import Captioner
from captioning.cli.main import main
from captioning.datasets import load_records
from captioning.models.encoder import Encoder
from captioning.models.pca import PCAProjection
from captioning.training.pca_fitting import ensure_pca_fitted
from tests.training.conftest import Fit

PCA = ("--model.encoder.pca_components", "8", "--model.encoder.frozen", "true")


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The explained variance of each fit."""
    explained: list[float] = []
    original = PCAProjection.fit

    def fit(self: PCAProjection, batches: object) -> float:
        explained.append(original(self, batches))
        return explained[-1]

    monkeypatch.setattr(PCAProjection, "fit", fit)
    return explained


def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder("tiny", pca_components=8)


def test_the_projection_is_fitted_once_per_encoder_and_images(drawn: Path, tmp_path: Path, fits: list[float]) -> None:
    images = [record.image_path for record in load_records(drawn)][:20]
    first, second = encoder(), encoder()
    ensure_pca_fitted(first, images, tmp_path, "cpu")
    ensure_pca_fitted(first, images[:10], tmp_path, "cpu")  # has a projection
    ensure_pca_fitted(second, images, tmp_path, "cpu")  # from the disk
    assert len(fits) == 1
    assert 0 < fits[0] <= 1
    assert torch.equal(first.pca.weight, second.pca.weight)
    ensure_pca_fitted(encoder(), images[:10], tmp_path, "cpu")
    assert len(fits) == 2


def test_a_run_starts_with_the_projection_of_init_from(
    fit: Fit, config: Path, tmp_path: Path, fits: list[float]
) -> None:
    cache = ("--data.feature_cache_dir", str(tmp_path / "features"), "--trainer.max_epochs", "1")
    run = fit(*PCA, *cache)
    model = run / "checkpoints" / "last.safetensors"
    other_cache = ("--data.feature_cache_dir", str(tmp_path / "others"))
    again = fit("--model.init_from", str(model), *PCA, *cache[2:], *other_cache, version="again")
    assert len(fits) == 1
    weights = [Captioner.from_pretrained(path / "checkpoints" / "last.safetensors").encoder for path in (run, again)]
    assert torch.equal(weights[0].pca.weight, weights[1].pca.weight)


def test_fitting_requires_the_feature_cache(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "--config", str(config), *PCA, "--data.feature_cache_dir", "null"])
    assert "pca_components requires the feature cache, or model.init_from" in capsys.readouterr().err
