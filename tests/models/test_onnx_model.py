import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from captioning.captioner import Captioner
from captioning.models import onnx_model
from captioning.utils.errors import CaptioningError
from tests.conftest import REPOSITORY, make_captioner

# Runs the example where importing torch, torchvision or captioning is an error.
_WITHOUT_TORCH = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchvision", "captioning", "onnx"):
            raise ImportError(name)

sys.meta_path.insert(0, Blocker())
sys.path.insert(0, "examples")
import json
from pathlib import Path
from caption_onnx import OnnxCaptioner

captioner = OnnxCaptioner(Path(sys.argv[1]))
sentence, maps = captioner.caption(sys.argv[2])
print(json.dumps([sentence, maps.tolist()]))
"""


def export(captioner: Captioner, output_dir: Path) -> float:
    options = {"min_length": 1, "num_beams": 3, "length_penalty": 0.7, "no_repeat_ngram_size": 2}
    return captioner.with_options(**options).export(output_dir)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"attention": "hard", "attention_score": "scaled_dot", "feature_mixer": "mean"},
        {"attention": "hard", "architecture": "luong"},
    ],
)
def test_the_example_generates_the_same_captions_without_torch(
    settings: dict[str, str], tmp_path: Path, photo: Path
) -> None:
    captioner = make_captioner(**settings)
    assert export(captioner, tmp_path) < 1e-4
    process = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TORCH, tmp_path, photo], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    sentence, maps = json.loads(process.stdout)
    options = {"num_beams": 3, "length_penalty": 0.7, "no_repeat_ngram_size": 2}
    expected = captioner.with_options(**options)(str(photo))
    assert sentence == expected.text
    np.testing.assert_allclose(maps, expected.attention_maps, atol=1e-4)


def test_a_deviation_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_model, "TOLERANCE", -1)
    with pytest.raises(CaptioningError, match="deviates from PyTorch"):
        export(make_captioner(), tmp_path)


def test_sampled_locations_cannot_be_exported(tmp_path: Path) -> None:
    captioner = make_captioner(attention="hard").with_options(attention_mode="sample")
    with pytest.raises(CaptioningError, match="'sample' cannot be exported"):
        export(captioner, tmp_path)


def test_an_unwritable_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptioningError, match="cannot be written"):
        export(make_captioner(), tmp_path / "file")
