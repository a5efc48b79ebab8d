import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from captioning import Captioner, datasets
from captioning.cli.main import main
from captioning.evaluation import calibration
from captioning.evaluation.calibration import fit_logistic, reliability_bins
from captioning.models.calibration import Calibration
from captioning.models.checkpoint import read_model
from captioning.utils.errors import CaptioningError
from tests.conftest import make_captioner


def test_the_fit_recovers_the_parameters() -> None:
    rng = np.random.default_rng(0)
    log_scores = np.log(rng.uniform(0.05, 0.95, 20_000))
    probs = 1 / (1 + np.exp(-(3 * log_scores + 2)))
    slope, intercept = fit_logistic(log_scores, rng.random(len(probs)) < probs)
    assert slope == pytest.approx(3, rel=0.05)
    assert intercept == pytest.approx(2, rel=0.05)


def test_the_fit_is_finite_for_separable_and_monotone_for_reversed_classes() -> None:
    log_scores = np.linspace(-3, -0.1, 40)
    slope, intercept = fit_logistic(log_scores, log_scores > -1)
    assert np.isfinite([slope, intercept]).all()
    assert slope > 0
    slope, intercept = fit_logistic(log_scores, log_scores < -1)
    assert slope == 0, "a better score never lowers the confidence"
    assert 1 / (1 + np.exp(-intercept)) == pytest.approx((log_scores < -1).mean(), abs=1e-6)
    with pytest.raises(CaptioningError, match="0 of 40 captions are good"):
        fit_logistic(log_scores, np.zeros(40, bool))


def test_confidence_is_the_logistic_function() -> None:
    fitted = Calibration(slope=2.0, intercept=1.0, cider_d_threshold=0.5, min_confidence=0.3)
    assert fitted.confidence(0.5) == pytest.approx(1 / (1 + np.exp(-(2 * np.log(0.5) + 1))))
    assert 0 <= fitted.confidence(0.0) < 1e-9 < fitted.confidence(1.0) < 1
    assert fitted.confidence(0.5, resembles_photo=False) == fitted.confidence(0.5)
    assert dataclasses.replace(fitted, photos_only=True).confidence(0.5, resembles_photo=False) == 0


def test_reliability_bins_have_equal_size() -> None:
    confidence = np.linspace(0.05, 0.95, 100)
    bins = reliability_bins(confidence, confidence > 0.5, num_bins=4)
    assert [bin_.num_captions for bin_ in bins] == [25] * 4
    assert [bin_.fraction_good for bin_ in bins] == [0, 0, 1, 1]
    assert [bin_.mean_confidence for bin_ in bins] == pytest.approx([0.159, 0.386, 0.614, 0.841], abs=0.001)


def test_the_command_stores_the_fit_in_the_model_file(
    drawn: Path, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibration, "_NUM_PER_KIND", 2)
    monkeypatch.setattr(calibration, "_NON_PHOTO_SIDE", 64)
    path, copy = tmp_path / "model.safetensors", tmp_path / "copy.safetensors"
    make_captioner().save(path)
    before = path.read_bytes()
    arguments = ["calibrate", str(path), "--data", str(drawn), "--split", "train", "--num-images", "12"]
    threshold = float(np.median(cider_d_of(path, drawn)))
    main([*arguments, "--threshold", str(threshold), "--output", str(copy)])
    assert path.read_bytes() == before
    output = capsys.readouterr().out
    assert "| mean confidence | fraction good | captions |" in output
    for kind in ("noise", "black", "uniform gray", "synthetic scenes"):
        assert f"| {kind} | " in output
    main([*arguments, "--threshold", str(threshold)])
    assert path.read_bytes() == copy.read_bytes()
    header = read_model(path).header["calibration"]
    assert set(header) == {"slope", "intercept", "cider_d_threshold", "min_confidence", "photos_only"}
    assert not header["photos_only"], "synthetic scenes do not resemble photos"
    with safe_open(path, "pt") as after:
        original = make_captioner().decoder.state_dict()
        assert all((after.get_tensor(f"decoder.{name}") == tensor).all() for name, tensor in original.items())
    caption = Captioner.from_pretrained(path)(photo)
    assert caption.confidence == Calibration(**header).confidence(caption.score)


def cider_d_of(model: Path, root: Path) -> list[float]:
    records = [record for record in datasets.load_records(root) if record.split == "train"][:12]
    captions = Captioner.from_pretrained(model)([record.image_path for record in records])
    references = [[calibration.tokenize(text) for text in record.captions] for record in records]
    return calibration.CiderD(references)([caption.words for caption in captions])


def test_saving_keeps_the_calibration(photo: Path, tmp_path: Path) -> None:
    captioner = make_captioner()
    captioner.calibration = Calibration(2.0, 1.0, 0.5, 1.0)
    captioner.save(tmp_path / "model.safetensors")
    caption = Captioner.from_pretrained(tmp_path / "model.safetensors")(Image.open(photo))
    assert caption.calibration == captioner.calibration
    assert caption.is_uncertain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.safetensors", "--data", "."], "none.safetensors: model file not found"),
        (["MODEL", "--data", "DRAWN", "--split", "other"], "no images in split 'other'"),
        (["MODEL", "--data", "DRAWN", "--num-images", "0"], "--num-images must be >= 1, got 0"),
        (["CHECKPOINT", "--data", "DRAWN"], "use the .safetensors file beside it"),
    ],
)
def test_bad_arguments_are_one_line(
    drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "last.ckpt").touch()
    make_captioner().save(tmp_path / "model.safetensors")
    names = {"MODEL": "model.safetensors", "CHECKPOINT": "last.ckpt", "DRAWN": str(drawn)}
    with pytest.raises(SystemExit, match="2"):
        main(["calibrate", *(str(tmp_path / names[item]) if item in names else item for item in arguments)])
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
