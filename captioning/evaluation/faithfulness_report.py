"""Report of the occlusion test: metrics with confidence intervals, a table, a plot, and JSON."""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from captioning.captioner import Captioner
from captioning.datasets.record import Record
from captioning.evaluation.bootstrap import RatioWithCI, ratio_with_ci
from captioning.evaluation.faithfulness import OcclusionResult, run_occlusion_test
from captioning.evaluation.tables import markdown_table
from captioning.utils.errors import CaptioningError

_LABELS = {
    "word_prob": "probability of a content word, nothing occluded",
    "log_prob_drop/most_attended": "drop of log p, 1/{num_steps} occluded: most attended",
    "log_prob_drop/other_image": "… most attended by a map of another image",
    "log_prob_drop/random": "… random",
    "log_prob_drop/least_attended": "… least attended",
    "log_prob_drop/attended_only": "… features of all locations but the most attended one masked",
    "drop_difference/other_image": "most attended − other image",
    "drop_difference/random": "most attended − random",
    "drop_difference/least_attended": "most attended − least attended",
    "deletion/most_attended": "deletion AUC, most attended first (lower is better)",
    "insertion/most_attended": "insertion AUC, most attended first (higher is better)",
    "insertion/random": "AUC in random order",
    "insertion_minus_deletion": "insertion AUC − deletion AUC (0 for an uninformative map)",
    "pointing_game/color": "pointing game: color words",
    "pointing_game/shape": "… shape words",
    "pointing_game/size": "… size words",
    "pointing_game/position": "… position words",
}
_LINES = {
    "most_attended": ("most attended first", "tab:blue"),
    "random": ("random order", "tab:gray"),
    "least_attended": ("least attended first", "tab:orange"),
}
_CONTROL = ("control: uniform attention", "black")


class FaithfulnessReport(NamedTuple):
    """Metrics of one model with one attention mode."""

    num_images: int
    num_words: int
    num_steps: int
    metrics: dict[str, RatioWithCI]
    curves: dict[str, RatioWithCI]  # probability (S + 1,) during deletion or insertion

    def to_dict(self) -> dict[str, Any]:
        parts = {"metrics": self.metrics, "curves": self.curves}
        values = {part: {name: entry.to_dict() for name, entry in entries.items()} for part, entries in parts.items()}
        counts = {"num_images": self.num_images, "num_words": self.num_words, "num_steps": self.num_steps}
        return {**counts, **values}


Reports = Mapping[str, Mapping[str, FaithfulnessReport]]  # by model, then by attention mode or control


def evaluate_model(captioner: Captioner, records: Sequence[Record]) -> dict[str, FaithfulnessReport]:
    """Run the occlusion test on the images of records, for the model and the control."""
    scenes = [scene for record in records if (scene := record.scene) is not None]
    is_synthetic = len(scenes) == len(records)
    images = [record.image_path for record in records]
    results = run_occlusion_test(captioner, images, scenes if is_synthetic else None)
    return {name: summarize(result) for name, result in results.items()}


def summarize(result: OcclusionResult) -> FaithfulnessReport:
    """Drops of log p after the first step; curves of p and the areas under them."""

    def mean(values: np.ndarray) -> RatioWithCI:
        sums = np.zeros((result.num_images, *values.shape[1:]))
        np.add.at(sums, result.image_index, values)
        return ratio_with_ci(sums, np.bincount(result.image_index, minlength=result.num_images))

    drops = {order: values[:, 0] - values[:, 1] for order, values in result.log_probs.items()}
    probs = {order: np.exp(result.log_probs[order]) for order in _LINES}
    # Insertion of the most attended first is deletion of the least attended first, reversed.
    reverse = {"most_attended": "least_attended", "random": "random", "least_attended": "most_attended"}
    curves = {f"deletion/{order}": values for order, values in probs.items()}
    curves |= {f"insertion/{order}": probs[other][:, ::-1] for order, other in reverse.items()}
    metrics = {"word_prob": mean(probs["most_attended"][:, 0])}
    metrics |= {f"log_prob_drop/{order}": mean(values) for order, values in drops.items()}
    metrics |= {
        f"drop_difference/{order}": mean(drops["most_attended"] - drops[order])
        for order in ("other_image", "random", "least_attended")
    }
    areas = {name: (values[:, 1:] + values[:, :-1]).mean(axis=1) / 2 for name, values in curves.items()}
    metrics |= {name: mean(values) for name, values in areas.items()}
    metrics["insertion_minus_deletion"] = mean(areas["insertion/most_attended"] - areas["deletion/most_attended"])
    for category, counts in result.pointing_counts.items():
        if counts[:, 1].any():
            metrics[f"pointing_game/{category}"] = ratio_with_ci(counts[:, 0], counts[:, 1])
    return FaithfulnessReport(
        num_images=result.num_images,
        num_words=len(result.words),
        num_steps=probs["most_attended"].shape[1] - 1,
        metrics=metrics,
        curves={name: mean(values) for name, values in curves.items()},
    )


def to_markdown(reports: Reports) -> str:
    """A Markdown table with one column per model and control."""
    columns = {f"{model}: {mode}": report for model, modes in reports.items() for mode, report in modes.items()}
    rows = [["", *columns]]
    rows.append(["images", *(str(report.num_images) for report in columns.values())])
    rows.append(["content words", *(str(report.num_words) for report in columns.values())])
    num_steps = next(iter(columns.values())).num_steps
    for name, label in _LABELS.items():
        values = [report.metrics.get(name) for report in columns.values()]
        if any(values):
            rows.append([label.format(num_steps=num_steps), *("" if value is None else str(value) for value in values)])
    return markdown_table(rows)


def save_report(plot_path: Path, reports: Reports) -> list[Path]:
    """Write the plot and, beside it, all values as JSON. Return the files that were written."""
    json_path = plot_path.with_suffix(".json")
    content = {model: {mode: report.to_dict() for mode, report in modes.items()} for model, modes in reports.items()}
    try:
        plot_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return [plot_path, json_path] if plot_curves(plot_path, reports) else [json_path]
    except (OSError, ValueError) as error:  # ValueError: matplotlib does not know the file format
        raise CaptioningError(f"{plot_path}: the report cannot be written ({error})") from None


def plot_curves(path: Path, reports: Reports) -> bool:
    """Plot deletion and insertion curves, one row per model; without the extra ``plots`` warn and return False."""
    try:
        import matplotlib
    except ImportError:
        warnings.warn("the plot is not written: pip install 'captioning[plots]'", stacklevel=2)
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(reports), 2, figsize=(11, 4.4 * len(reports)), sharey="row", squeeze=False, layout="constrained"
    )
    for (model, modes), row in zip(reports.items(), panels, strict=True):
        control = modes["uniform"]
        (report,) = (report for mode, report in modes.items() if mode != "uniform")
        fractions = np.linspace(0, 1, report.num_steps + 1)
        for axes, kind in zip(row, ("deletion", "insertion"), strict=True):
            lines = [(report.curves[f"{kind}/{order}"], *style, "-") for order, style in _LINES.items()]
            lines.append((control.curves[f"{kind}/most_attended"], *_CONTROL, ":"))
            for curve, label, color, line_style in lines:
                axes.plot(fractions, curve.mean, line_style, color=color, label=label)
                axes.fill_between(fractions, curve.ci_low, curve.ci_high, color=color, alpha=0.15, linewidth=0)
            axes.grid(alpha=0.3)
        row[0].set_title(f"{model}: deletion")
        row[0].set_xlabel("fraction of the image that is occluded (blurred)")
        row[0].set_ylabel(f"probability of a content word\n({report.num_words} words, {report.num_images} images)")
        row[1].set_title(f"{model}: insertion")
        row[1].set_xlabel("fraction of the blurred image that is revealed")
        row[1].tick_params(labelleft=True)
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(),
        title="bands: 95 % bootstrap confidence intervals",
        loc="outside lower center",
        ncols=4,
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
