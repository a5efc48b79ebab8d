"""``captioning plot`` on metrics files as Lightning writes them."""

from pathlib import Path

import pytest
from PIL import Image

from captioning.evaluation.curves import plot_runs, read_metrics
from captioning.utils.errors import CaptioningError
from tests.cli.test_main import run

METRICS = """epoch,step,train/loss,val/cider_d,val/loss
0,9,3.5,,
0,19,3.0,,
0,19,,0.2,3.3
1,39,2.5,0.4,3.1
"""


def make_run(path: Path, text: str = METRICS) -> Path:
    path.mkdir(parents=True)
    (path / "metrics.csv").write_text(text)
    return path


def test_metrics_have_their_own_steps(tmp_path: Path) -> None:
    curves = read_metrics(make_run(tmp_path / "run"))
    assert curves == {
        "train/loss": ([9, 19, 39], [3.5, 3.0, 2.5]),
        "val/cider_d": ([19, 39], [0.2, 0.4]),
        "val/loss": ([19, 39], [3.3, 3.1]),
    }


def test_one_run_and_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    runs = [make_run(tmp_path / name) for name in ("first", "second")]
    code, out, err = run(capsys, "plot", str(runs[0]))
    assert (code, out, err) == (0, [f"curves: {runs[0] / 'metrics.png'}"], [])
    output = tmp_path / "both.png"
    code, out, _ = run(capsys, "plot", *map(str, runs), "--output", str(output))
    assert (code, out) == (0, [f"curves: {output}"])
    with Image.open(runs[0] / "metrics.png") as image:
        assert image.width > 1.5 * image.height, "loss and cider_d are panels side by side"
        assert len(image.convert("RGB").getcolors(1 << 20)) > 2


@pytest.mark.parametrize(
    ("text", "output", "message"),
    [
        (METRICS, "curves.docx", "unknown image format"),
        (METRICS.splitlines()[0], "curves.png", "no metric has two values yet"),
        ("a;b\n1;2\n", "curves.png", "line 2: not the metrics of a run"),
    ],
)
def test_bad_input(tmp_path: Path, text: str, output: str, message: str) -> None:
    with pytest.raises(CaptioningError, match=message):
        plot_runs([make_run(tmp_path / "run", text)], tmp_path / output)


def test_a_directory_without_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "plot", str(tmp_path))
    assert (code, out, len(err)) == (2, [], 1)
    assert "give the directory of a run" in err[0]
