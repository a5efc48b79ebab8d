"""Curves of training runs, from the ``metrics.csv`` that the CSVLogger of Lightning writes."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from captioning.utils.errors import CaptioningError

Curves = dict[str, tuple[list[int], list[float]]]  # steps and values of each metric

_NUM_COLUMNS = 3
_PANEL_SIZE = (4.0, 2.6)  # inches
_SUFFIXES = (".png", ".pdf", ".svg")


def read_metrics(run: Path) -> Curves:
    """Read the metrics of a run directory. Metrics with fewer than two values are omitted."""
    path = run / "metrics.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise CaptioningError(
            f"{path}: cannot be read ({error.strerror}); give the directory of a run with the CSVLogger"
        ) from None
    curves: Curves = {}
    for number, row in enumerate(rows, 2):
        for name, value in row.items():
            if not value or name in ("step", "epoch"):
                continue
            try:
                point = int(row["step"]), float(value)
            except (KeyError, TypeError, ValueError):
                raise CaptioningError(f"{path}, line {number}: not the metrics of a run; expected numbers") from None
            steps, values = curves.setdefault(name, ([], []))
            steps.append(point[0])
            values.append(point[1])
    return {name: (steps, values) for name, (steps, values) in curves.items() if len(steps) > 1}


def plot_runs(runs: Sequence[Path], output: Path) -> None:
    """Draw one panel per metric with a curve for each run.

    ``train/x`` and ``val/x`` share a panel, so that overfitting is visible.
    """
    if output.suffix.lower() not in _SUFFIXES:
        raise CaptioningError(f"{output}: unknown image format; use one of {', '.join(_SUFFIXES)}")
    curves = {run: read_metrics(run) for run in runs}
    panels: dict[str, list[str]] = {}
    for name in sorted({name for run_curves in curves.values() for name in run_curves}):
        panels.setdefault(name.partition("/")[2] or name, []).append(name)
    if not panels:
        raise CaptioningError(f"{runs[0] / 'metrics.csv'}: no metric has two values yet; train for another epoch")

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(_NUM_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = (_PANEL_SIZE[0] * columns, _PANEL_SIZE[1] * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis, (title, names) in zip(axes.flat, panels.items(), strict=False):
        for run, run_curves in curves.items():
            for name in names:
                if name in run_curves:
                    label = (
                        name.partition("/")[0]
                        if len(runs) == 1
                        else f"{run.parent.name}/{run.name} {name.partition('/')[0]}"
                    )
                    axis.plot(*run_curves[name], label=label, linewidth=1)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("step", fontsize=8)
        axis.tick_params(labelsize=7)
        axis.legend(fontsize=7)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    try:
        figure.savefig(output, dpi=150)
    except OSError as error:
        raise CaptioningError(f"{output}: cannot be written ({error.strerror}); choose another --output") from None
    finally:
        plt.close(figure)
