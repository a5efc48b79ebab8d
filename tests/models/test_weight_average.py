from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from captioning import Captioner
from captioning.cli.main import main
from captioning.models.calibration import Calibration
from captioning.models.weight_average import average_models
from captioning.utils.errors import CaptioningError
from tests.conftest import make_captioner


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """Three models with the same encoder and different decoders."""
    paths = []
    captioner = make_captioner()
    _, decoder = captioner.single_model()
    captioner.calibration = Calibration(2.0, 1.0, 0.5, 0.1)
    generator = torch.Generator().manual_seed(0)
    for index in range(3):
        paths.append(tmp_path / f"{index}.safetensors")
        captioner.save(paths[-1])
        with torch.no_grad():
            for parameter in decoder.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return paths


@pytest.mark.parametrize(("weights", "expected"), [(None, (1 / 3, 1 / 3, 1 / 3)), ([0, 1, 3], (0, 0.25, 0.75))])
def test_average(
    models: list[Path], tmp_path: Path, weights: list[float] | None, expected: tuple[float, float, float]
) -> None:
    output = tmp_path / "average.safetensors"
    average_models(models, weights, output)
    actual, *tensors = map(load_file, [output, *models])
    for name, tensor in actual.items():
        mean = sum(weight * own[name] for weight, own in zip(expected, tensors, strict=True))
        torch.testing.assert_close(tensor, mean, atol=1e-6, rtol=1e-6, check_dtype=False)
        if name.startswith("encoder."):
            assert torch.equal(tensor, tensors[0][name])
    assert Captioner.from_pretrained(output).calibration is None


def test_command(models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "average.safetensors"
    main(["average", *map(str, models[:2]), str(output), "--weights", "0.5", "0.5"])
    assert capsys.readouterr().out == f"{output}: average of 2 models\n"
    average_models(models[:2], None, tmp_path / "expected.safetensors")
    assert output.read_bytes() == (tmp_path / "expected.safetensors").read_bytes()


def test_a_compact_file_can_be_averaged(tmp_path: Path) -> None:
    output = tmp_path / "average.safetensors"
    average_models(["flickr8k-soft", "flickr8k-soft"], None, output)
    expected, actual = (Captioner.from_pretrained(source).single_model() for source in ("flickr8k-soft", output))
    for module, expected_module in zip(actual, expected, strict=True):
        for name, tensor in expected_module.state_dict().items():
            assert torch.equal(module.state_dict()[name], tensor)


def test_invalid_input(models: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "average.safetensors"
    for sources, weights, message in (
        (models[:1], None, "at least two models"),
        (models, [1.0, 2.0], "one value per model, got 2 for 3"),
        (models, [1.0, -1.0, 1.0], "must be >= 0"),
        (models, [0.0, 0.0, 0.0], "at least one must be > 0"),
        ([models[0], "flickr8k-soft"], None, "flickr8k-soft: the encoder differs from that of"),
    ):
        with pytest.raises(CaptioningError, match=message):
            average_models(sources, weights, output)
    assert not output.exists()
