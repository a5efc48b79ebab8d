"""What was measured of maps, told: figures and how sure they are, a table, a plot, and JSON."""

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from captioning import scoring
from captioning.captioner import Captioner
from captioning.datasets.records import Record
from captioning.datasets.scenes import Scene
from captioning.errors import CaptioningError
from captioning.faithfulness import Measured, measure

_LABELS = {
    "chance": "p of a content word, nothing covered",
    "fall/most": "fall of log p, 1/{steps} covered: the most attended",
    "fall/other": "… what another picture's map attends most",
    "fall/random": "… at random",
    "fall/least": "… the least attended",
    "more_than/other": "most attended less another picture's",
    "more_than/random": "most attended less random",
    "more_than/least": "most attended less least attended",
    "deletion/most": "area under p, most attended covered first (low is good)",
    "insertion/most": "area under p, most attended uncovered first (high is good)",
    "insertion/random": "area under p, either in random order",
    "insertion_less_deletion": "uncovered less covered (0: the map says nothing)",
    "pointing/colour": "maps that point at the object: colour words",
    "pointing/shape": "… shape words",
    "pointing/size": "… size words",
    "pointing/place": "… place words",
}
_LINES = {
    "most": ("most attended first", "tab:blue"),
    "random": ("in random order", "tab:gray"),
    "least": ("least attended first", "tab:orange"),
}
_CONTROL = ("control: the model looks everywhere alike", "black")


class Figure(NamedTuple):
    """A mean over words, and between which bounds it lies for 95 % of other draws of the pictures."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Report(NamedTuple):
    """The figures of one model with one look."""

    pictures: int
    words: int
    steps: int
    figures: dict[str, Figure]
    curves: dict[str, Figure]  # of p (S + 1,), as places are covered (deletion) or uncovered (insertion)

    def as_json(self) -> dict[str, Any]:
        parts = {"figures": self.figures, "curves": self.curves}
        told = {
            part: {
                name: {bound: np.asarray(value).tolist() for bound, value in figure._asdict().items()}
                for name, figure in figures.items()
            }
            for part, figures in parts.items()
        }
        return {"pictures": self.pictures, "words": self.words, "steps": self.steps, **told}


Reports = Mapping[str, Mapping[str, Report]]  # by model, then by its look and by the control


def check(captioner: Captioner, records: Sequence[Record]) -> dict[str, Report]:
    """Measure a model's maps and the control's on pictures; on drawn ones also whether they point at their objects."""
    drawn = all("scene" in record.details for record in records)
    scenes = [Scene.from_json(record.details["scene"]) for record in records] if drawn else None
    measured = measure(captioner, [record.image for record in records], scenes)
    return {look: report(one) for look, one in measured.items()}


def report(measured: Measured) -> Report:
    """Falls of log p after the first step; curves, and areas under them, of p, which no single word can outweigh."""

    def mean(of_words: np.ndarray) -> Figure:
        sums = np.zeros((measured.pictures, *of_words.shape[1:]))
        np.add.at(sums, measured.of_picture, of_words)
        return _mean(sums, np.bincount(measured.of_picture, minlength=measured.pictures))

    falls = {order: values[:, 0] - values[:, 1] for order, values in measured.log_chances.items()}
    chances = {order: np.exp(measured.log_chances[order]) for order in _LINES}
    # What is left covered while the most attended are uncovered is what was covered first of the least attended.
    turned = {"most": "least", "random": "random", "least": "most"}
    uncovered = {order: chances[other][:, ::-1] for order, other in turned.items()}
    curves = {f"deletion/{order}": values for order, values in chances.items()}
    curves |= {f"insertion/{order}": values for order, values in uncovered.items()}
    figures = {"chance": mean(chances["most"][:, 0])}
    figures |= {f"fall/{order}": mean(values) for order, values in falls.items()}
    figures |= {f"more_than/{order}": mean(falls["most"] - falls[order]) for order in ("other", "random", "least")}
    areas = {name: (values[:, 1:] + values[:, :-1]).mean(axis=1) / 2 for name, values in curves.items()}
    figures |= {name: mean(values) for name, values in areas.items()}
    figures["insertion_less_deletion"] = mean(areas["insertion/most"] - areas["deletion/most"])
    for kind, counts in measured.pointing.items():
        if counts[:, 1].any():
            figures[f"pointing/{kind}"] = _mean(counts[:, 0], counts[:, 1])
    return Report(
        pictures=measured.pictures,
        words=len(measured.words),
        steps=chances["most"].shape[1] - 1,
        figures=figures,
        curves={name: mean(values) for name, values in curves.items()},
    )


def _mean(sums: np.ndarray, counts: np.ndarray) -> Figure:
    """Over words, of sums (N, …) and counts (N,) of each picture's words: words of a picture are not independent."""
    sums, counts = sums[counts > 0], counts[counts > 0]
    weights = _draws(len(counts))
    resampled = ((weights @ sums).T / (weights @ counts)).T
    return Figure(sums.sum(axis=0) / counts.sum(), *scoring.between(resampled))


@functools.lru_cache(maxsize=8)
def _draws(pictures: int) -> np.ndarray:
    """The same for all figures, and made only once."""
    return scoring.draws(pictures)


def table(reports: Reports) -> str:
    """All figures in Markdown, a column for each model and for its control."""
    columns = {f"{model}: {look}": one for model, looks in reports.items() for look, one in looks.items()}
    rows = [["", *columns], ["---"] * (len(columns) + 1)]
    rows.append(["pictures", *(str(one.pictures) for one in columns.values())])
    rows.append(["content words", *(str(one.words) for one in columns.values())])
    for name, label in _LABELS.items():
        figures = [one.figures.get(name) for one in columns.values()]
        if any(figures):
            steps = next(iter(columns.values())).steps
            rows.append([label.format(steps=steps), *("" if figure is None else str(figure) for figure in figures)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"| {line} |" for line in lines)


def write(path: Path, reports: Reports) -> list[Path]:
    """Write the figures as JSON beside the plot, and the plot if there is something to draw it with: what was written.

    Args:
        path: of the plot.
        reports: the figures.
    """
    numbers = path.with_suffix(".json")
    content = {model: {look: one.as_json() for look, one in looks.items()} for model, looks in reports.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        numbers.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return [path, numbers] if plot(path, reports) else [numbers]
    except (OSError, ValueError) as error:  # matplotlib's, of a name whose ending is no picture's
        raise CaptioningError(f"{path}: the plot of the maps cannot be written ({error})") from None


def plot(path: Path, reports: Reports) -> bool:
    """The curves, a row for each model; False, and a line of advice, without the extra ``plots``."""
    try:
        import matplotlib
    except ImportError:
        print("the plot is left out: pip install 'captioning[plots]' brings what draws it", file=sys.stderr, flush=True)
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(reports), 2, figsize=(11, 4.4 * len(reports)), sharey="row", squeeze=False, layout="constrained"
    )
    for (model, looks), row in zip(reports.items(), panels, strict=True):
        control = looks["uniform"]
        (own,) = (one for look, one in looks.items() if look != "uniform")
        shares = np.linspace(0, 1, own.steps + 1)
        for axes, kind in zip(row, ("deletion", "insertion"), strict=True):
            lines = [(own.curves[f"{kind}/{order}"], *how, "-") for order, how in _LINES.items()]
            lines.append((control.curves[f"{kind}/most"], *_CONTROL, ":"))
            for curve, label, colour, style in lines:
                axes.plot(shares, curve.value, style, color=colour, label=label)
                axes.fill_between(shares, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
            axes.grid(alpha=0.3)
        row[0].set_title(f"{model}: places are covered")
        row[0].set_xlabel("share of the picture that is covered (blurred)")
        row[0].set_ylabel(f"probability of a word\n(mean of {own.words} words, {own.pictures} pictures)")
        row[1].set_title(f"{model}: places are uncovered")
        row[1].set_xlabel("share of the picture that is uncovered, of one all blurred")
        row[1].tick_params(labelleft=True)
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(),
        title="bands: where 95 % of other draws of the pictures lie",
        loc="outside lower center",
        ncols=4,
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
