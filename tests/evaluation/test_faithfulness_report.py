import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioning.evaluation import faithfulness_report as reporting
from captioning.evaluation.faithfulness import (
    OcclusionResult,
    run_occlusion_test,
)
from captioning.utils.errors import CaptioningError
from tests.evaluation.occlusion_stubs import ORDERS, stub_captioner, two_cell_images

pytestmark = pytest.mark.usefixtures("fixed_captions")


def random_result(num_images: int, num_repeats: int) -> OcclusionResult:
    """Random log-probabilities of one word per image, which occurs ``num_repeats`` times."""
    values = np.random.default_rng(0).normal(size=(num_images, 9))
    log_probs = {order: np.repeat(values, num_repeats, axis=0) for order in ORDERS}
    words = ["dog"] * (num_images * num_repeats)
    return OcclusionResult(num_images, words, np.repeat(np.arange(num_images), num_repeats), log_probs, {})


def test_confidence_intervals_resample_images_and_not_words() -> None:
    """Repeated words of an image do not change the interval; more images make it narrower."""
    few, repeated, many = (
        reporting.summarize(random_result(*size)).metrics["log_prob_drop/most_attended"]
        for size in ((80, 1), (80, 20), (1280, 1))
    )
    assert tuple(repeated) == pytest.approx(tuple(few))
    assert few.ci_low < few.mean < few.ci_high
    assert many.ci_high - many.ci_low == pytest.approx((few.ci_high - few.ci_low) / 4, rel=0.2)


def test_mean_is_over_all_words() -> None:
    log_probs = dict.fromkeys(ORDERS, np.array([[0.0, -1.0], [0.0, -4.0], [0.0, -4.0]]))
    metrics = reporting.summarize(OcclusionResult(9, ["x"] * 3, np.array([2, 7, 7]), log_probs, {})).metrics
    drop = metrics["log_prob_drop/most_attended"]
    assert drop.mean == pytest.approx(3)
    assert (drop.ci_low, drop.ci_high) == pytest.approx((1, 4))
    assert metrics["word_prob"].mean == pytest.approx(1)
    assert metrics["deletion/most_attended"].mean == pytest.approx((1 + (np.exp(-1) + 2 * np.exp(-4)) / 3) / 2)


@pytest.fixture
def reports() -> dict[str, dict[str, reporting.FaithfulnessReport]]:
    results = run_occlusion_test(stub_captioner(), two_cell_images(4))
    return {"stub": {name: reporting.summarize(result) for name, result in results.items()}}


def test_table_plot_and_json(reports, tmp_path: Path) -> None:
    lines = reporting.to_markdown(reports).splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[2:4]] == ["stub: soft", "stub: uniform"]
    assert len({len(line) for line in lines}) == 1
    drop = reports["stub"]["soft"].metrics["log_prob_drop/most_attended"]
    (row,) = (line for line in lines if "1/8 occluded: most attended" in line)
    assert str(drop) in row
    assert not any("pointing" in line for line in lines), "photos have no scenes"
    path = tmp_path / "new" / "faithfulness.png"
    assert reporting.save_report(path, reports) == [path, path.with_suffix(".json")]
    with Image.open(path) as image:
        assert image.width > 800
    values = json.loads(path.with_suffix(".json").read_text())["stub"]["soft"]
    assert (values["num_images"], values["num_words"], values["num_steps"]) == (4, 8, 8)
    assert values["metrics"]["log_prob_drop/most_attended"]["mean"] == drop.mean
    assert len(values["curves"]["insertion/random"]["ci_low"]) == 9


def test_json_is_written_without_matplotlib(reports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.warns(UserWarning, match=r"pip install 'captioning\[plots\]'"):
        paths = reporting.save_report(tmp_path / "faithfulness.png", reports)
    assert paths == [tmp_path / "faithfulness.json"]
    assert paths[0].exists()
    assert not (tmp_path / "faithfulness.png").exists()


@pytest.mark.parametrize("name", ["file/faithfulness.png", "faithfulness.xyz"])
def test_report_that_cannot_be_written(reports, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(CaptioningError, match=r"faithfulness\.\w+: the report cannot be written"):
        reporting.save_report(tmp_path / name, reports)
