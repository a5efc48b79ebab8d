"""Maps checked by the commands that measure a checkpoint."""

import json
import sys
from pathlib import Path

import pytest

from captioning.cli import main
from tests.training.conftest import Fit
from tests.training.test_command import check_error


def test_maps_are_checked_after_the_usual_figures(
    fit: Fit, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = fit("--trainer.max_epochs", "1") / "checkpoints" / "last.ckpt"
    arguments = ["--config", str(config), "--ckpt_path", str(checkpoint), "--trainer.logger", "false"]
    # Trained so little, it would say nothing but "a a a".
    arguments += ["--model.search.no_repeat", "1", "--model.search.minimum_length", "6"]
    capsys.readouterr()
    main(["validate", *arguments, "--maps", "--maps_pictures", "4"])
    output = capsys.readouterr().out
    assert output.index("val/truth") < output.index("last: soft")
    (counted,) = (line for line in output.splitlines() if line.startswith("| pictures"))
    assert [cell.strip() for cell in counted.split("|")[2:4]] == ["4", "4"]
    plot = checkpoint.with_name("last-maps-val.png")
    assert f"maps: {plot}" in output
    assert f"maps: {plot.with_suffix('.json')}" in output
    assert plot.is_file()
    assert json.loads(plot.with_suffix(".json").read_text())["last"]["uniform"]["pictures"] == 4

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    plot = tmp_path / "elsewhere" / "maps.png"
    main(["test", *arguments, "--maps", "--maps_plot", str(plot)])
    output = capsys.readouterr()
    assert "last: soft" in output.out
    assert f"maps: {plot}" not in output.out
    assert f"maps: {plot.with_suffix('.json')}" in output.out
    assert "pip install 'captioning[plots]'" in output.err

    main(["test", *arguments])
    assert "last: soft" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "parts"),
    [(["fit", "--maps"], ("--maps",)), (["test", "--maps", "--maps_pictures", "0"], ("maps_pictures", "0"))],
)
def test_bad_input_is_one_line(
    config: Path, capsys: pytest.CaptureFixture[str], command: list[str], parts: tuple[str, ...]
) -> None:
    check_error(capsys, [*command, "--config", str(config)], *parts)
