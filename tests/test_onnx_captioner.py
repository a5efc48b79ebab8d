import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from captioning import onnx_captioner
from captioning.caption import Caption
from captioning.captioner import Captioner
from captioning.models.exported_model import ExportedModel
from captioning.onnx_captioner import OnnxCaptioner, load_captioner
from captioning.pipeline import CaptioningPipeline
from captioning.utils.errors import CaptioningError
from tests.conftest import REPOSITORY, make_captioner

_SCRIPT = """
import sys
from captioning import onnx_captioner
from captioning.cli.main import main
onnx_captioner._GPU_FILES = ()
main(sys.argv[1:])
print(sorted({"torch", "torchvision", "timm", "tqdm"} & set(sys.modules)))
"""


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a process that seems not to have imported torch, on a machine without a GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(onnx_captioner, "_prefers_torch", lambda: False)
    return tmp_path / "captioning"


@pytest.fixture
def model(captioner: Captioner, tmp_path: Path) -> str:
    path = tmp_path / "model.safetensors"
    captioner.save(path)
    return str(path)


def load(*models: str, attention_mode: str | None = None, **options: Any) -> CaptioningPipeline:
    return load_captioner(models, attention_mode, seed=0, **{"num_return_sequences": 1, **options})


def make_images(count: int) -> list[Image.Image]:
    """Noise of different sizes, aspect ratios and mean colors."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(5, 90, (count, 2))
    colors = generator.integers(0, 200, (count, 3))
    return [
        Image.fromarray((color + generator.integers(0, 56, (*size, 3))).astype(np.uint8))
        for size, color in zip(sizes, colors, strict=True)
    ]


def assert_same_captions(captions: list[Any], expected_captions: list[Any]) -> None:
    for caption, expected in zip(captions, expected_captions, strict=True):
        assert isinstance(caption, Caption)
        assert caption.words == expected.words
        assert caption.token_probs == pytest.approx(expected.token_probs, abs=1e-4)
        np.testing.assert_allclose(caption.attention_maps, expected.attention_maps, atol=1e-4)
        assert caption.context_gates == (expected.context_gates and pytest.approx(expected.context_gates, abs=1e-4))
        assert caption.receptive_field == expected.receptive_field
        assert caption.crop_box == expected.crop_box
        assert_same_captions(list(caption.alternatives), list(expected.alternatives))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"architecture": "luong", "attention_score": "scaled_dot", "context_gate": "vector"},
        {"attention": "hard", "attention_score": "general", "attention_size": None},
    ],
)
def test_captions_equal_those_of_pytorch(settings: dict[str, Any], tmp_path: Path) -> None:
    captioner = make_captioner(**settings)
    captioner.export(tmp_path)
    images = make_images(9)
    for options in (
        {},
        {"num_beams": 4, "no_repeat_ngram_size": 2, "length_penalty": 0.7, "num_return_sequences": 3},
        {"num_beams": 6, "num_beam_groups": 3, "num_return_sequences": 3, "min_length": 3},
    ):
        expected = captioner(images, batch_size=4, **options)
        assert len({caption.text for caption in expected}) > 1
        exported = OnnxCaptioner(ExportedModel(tmp_path), **options)
        assert_same_captions(list(exported.iter_captions(images, batch_size=4)), expected)


@pytest.mark.parametrize("attention_mode", [None, "argmax", "expectation"])
def test_the_first_use_exports_the_model(
    attention_mode: str | None, hard_captioner: Captioner, tmp_path: Path, cache_dir: Path
) -> None:
    path = tmp_path / "hard.safetensors"
    hard_captioner.save(path)
    first = load(str(path), attention_mode=attention_mode, num_beams=2)
    assert isinstance(first, Captioner)
    later = load(str(path), attention_mode=attention_mode, num_beams=2)
    assert isinstance(later, OnnxCaptioner)
    images = make_images(3)
    assert_same_captions(list(later.iter_captions(images)), list(first.iter_captions(images)))
    assert len(list(cache_dir.iterdir())) == 1
    stored = load(str(path), attention_mode=attention_mode)
    assert isinstance(stored, OnnxCaptioner)
    assert stored.generation == hard_captioner.generation, "options of the first use are not stored"


def test_the_command_imports_no_torch(model: str, cache_dir: Path, photo: Path) -> None:
    captioner = load(model)
    assert isinstance(captioner, Captioner)
    process = subprocess.run(
        [sys.executable, "-c", _SCRIPT, "caption", str(photo), "--model", model, "--json", "--num-beams", "3"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    result, imported = process.stdout.splitlines()
    assert imported == "[]"
    assert json.loads(result)["caption"] == captioner(photo, num_beams=3).text


def test_what_is_sampled_or_an_ensemble_runs_in_pytorch(
    model: str, hard_captioner: Captioner, tmp_path: Path, cache_dir: Path
) -> None:
    hard = str(tmp_path / "hard.safetensors")
    hard_captioner.with_options(attention_mode="sample").save(hard)
    for _ in range(2):
        assert isinstance(load(model, do_sample=True, num_return_sequences=2), Captioner)
        assert isinstance(load(model, model), Captioner)
        assert isinstance(load(hard, attention_mode="sample"), Captioner)
        assert isinstance(load(hard), Captioner), "the mode is stored in the file"
    assert not cache_dir.exists()


def test_an_imported_torch_is_used(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        assert isinstance(load(model), Captioner)
    assert not (tmp_path / "captioning").exists()


def test_a_model_that_cannot_be_exported_is_tried_once(
    model: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail(captioner: Captioner, output_dir: Path, use_cache: bool) -> float:
        calls.append(output_dir)
        output_dir.mkdir()
        (output_dir / "encoder.onnx").touch()
        raise RuntimeError

    monkeypatch.setattr(Captioner, "export", fail)
    for _ in range(2):
        assert isinstance(load(model), Captioner)
    assert len(calls) == 1


def test_a_corrupt_cache_is_not_used(model: str, cache_dir: Path) -> None:
    load(model)
    (directory,) = cache_dir.iterdir()
    (directory / "decoder_step.onnx").write_bytes(b"corrupt")
    assert isinstance(load(model), Captioner)


def test_a_changed_model_file_is_exported_again(model: str, hard_captioner: Captioner, cache_dir: Path) -> None:
    load(model)
    hard_captioner.save(model)
    assert isinstance(load(model), Captioner)
    assert isinstance(load(model), OnnxCaptioner)


def test_wrong_options_raise_the_same_errors(model: str, cache_dir: Path) -> None:
    for _ in range(2):
        with pytest.raises(CaptioningError, match=r"num_return_sequences must be in \[1, 1\], got 2"):
            load(model, num_return_sequences=2)
        with pytest.raises(CaptioningError, match="length_penalty has no effect without beam search"):
            load(model, length_penalty=0.5)
        with pytest.raises(CaptioningError, match="'argmax' requires hard attention"):
            load(model, attention_mode="argmax")
        assert isinstance(load(model), CaptioningPipeline)
