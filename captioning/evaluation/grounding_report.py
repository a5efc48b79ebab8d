"""Report of the grounding of attention maps: metrics with confidence intervals, a table, JSON and a figure."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from captioning.datasets.boxes import boxes_by_category
from captioning.evaluation.bootstrap import RatioWithCI, ratio_with_ci
from captioning.evaluation.grounding import CONTROLS, ImageGrounding, WordGrounding
from captioning.evaluation.tables import markdown_table
from captioning.preprocessing.image import open_image
from captioning.utils.errors import CaptioningError

SMALL_AREA = 0.1  # of the image; objects whose largest box is smaller are also reported alone
_LABELS = {
    "pointing/map": "pointing: highest weight of the word's map",
    "pointing/center": "… image center",
    "pointing/other_word": "… map of another word",
    "pointing/uniform": "… uniform attention",
    "pointing_minus_center": "… map − image center",
    "mass/map": "attention mass in the box",
    "mass/center": "… all at the image center",
    "mass/other_word": "… map of another word",
    "mass/uniform": "… uniform attention",
    "mass_over_uniform": "… map / uniform",
}
_SIZES = {"all": "all", "small": f"box < {SMALL_AREA:g} of the image", "large": f"box ≥ {SMALL_AREA:g} of the image"}
_NUM_EXAMPLES = 4  # columns of the figure


class GroundingReport(NamedTuple):
    """Metrics of one model."""

    num_images: int
    num_words: dict[str, int]  # by size: all, small, large
    metrics: dict[str, dict[str, RatioWithCI]]  # by size, then by name
    categories: dict[str, dict[str, float]]  # by category; a value without cases is missing
    object_precision: RatioWithCI  # named categories with a box / named categories
    object_recall: RatioWithCI  # categories with a box that the caption names / categories with a box

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        metrics = {
            size: {name: value.to_dict() for name, value in values.items()} for size, values in self.metrics.items()
        }
        objects = {"object_precision": self.object_precision.to_dict(), "object_recall": self.object_recall.to_dict()}
        return {**self._asdict(), "metrics": metrics, **objects}


def summarize(results: Sequence[ImageGrounding]) -> GroundingReport:
    """Average over words; confidence intervals resample images, since the words of an image are not independent."""
    selections: dict[str, Callable[[WordGrounding], bool]] = {
        "all": lambda word: True,
        "small": lambda word: word.box_area < SMALL_AREA,
        "large": lambda word: word.box_area >= SMALL_AREA,
    }
    selected = {
        size: [[word for word in result.words if is_selected(word)] for result in results]
        for size, is_selected in selections.items()
    }
    num_words = {size: sum(map(len, words)) for size, words in selected.items()}
    if not num_words["all"]:
        example = results[0].caption.text
        raise CaptioningError(f"no caption names an object with a box (the first one is '{example}'); use more images")
    num_named, num_present, num_correct = (
        np.array([len(categories) for categories in sets], dtype=float)
        for sets in (
            [result.named for result in results],
            [result.present for result in results],
            [result.named & result.present for result in results],
        )
    )
    return GroundingReport(
        num_images=len(results),
        num_words=num_words,
        metrics={size: dict(_metrics(words)) for size, words in selected.items() if num_words[size]},
        categories=_by_category(results),
        object_precision=ratio_with_ci(num_correct, num_named),
        object_recall=ratio_with_ci(num_correct, num_present),
    )


def _metrics(images: Sequence[Sequence[WordGrounding]]) -> Iterator[tuple[str, RatioWithCI]]:
    """Metrics of the words of each image."""
    counts = np.array([len(words) for words in images], dtype=float)
    for kind in ("pointing", "mass"):
        sums = {}
        for source in ("map", *CONTROLS):
            values = [[getattr(word, kind)[source] for word in words] for words in images]
            sums[source] = np.array([np.nansum(image_values) for image_values in values])
            valid = np.array([np.count_nonzero(~np.isnan(image_values)) for image_values in values], dtype=float)
            if valid.any():
                yield f"{kind}/{source}", ratio_with_ci(sums[source], valid)
        if kind == "pointing":
            yield "pointing_minus_center", ratio_with_ci(sums["map"] - sums["center"], counts)
        elif sums["uniform"].any():
            yield "mass_over_uniform", ratio_with_ci(sums["map"], sums["uniform"])


def _by_category(results: Sequence[ImageGrounding]) -> dict[str, dict[str, float]]:
    """Values of each category, the most frequent first; recall and precision count images."""
    categories = {category for result in results for category in result.present | result.named}
    rows: dict[str, dict[str, float]] = {}
    for category in categories:
        words = [word for result in results for word in result.words if word.category == category]
        num_present = sum(category in result.present for result in results)
        num_named = sum(category in result.named for result in results)
        num_both = sum(category in result.present & result.named for result in results)
        row: dict[str, float] = {"num_images": num_present, "num_named": num_named, "num_words": len(words)}
        if num_present:
            row["recall"] = num_both / num_present
        if num_named:
            row["precision"] = num_both / num_named
        if words:
            for kind, source in (("pointing", "map"), ("pointing", "center"), ("mass", "map"), ("mass", "uniform")):
                row[f"{kind}/{source}"] = float(np.mean([getattr(word, kind)[source] for word in words]))
        rows[category] = row
    return dict(sorted(rows.items(), key=lambda item: (-item[1]["num_images"], item[0])))


def to_markdown(reports: Mapping[str, GroundingReport]) -> str:
    """Markdown tables: all metrics of each model, then its categories."""
    columns = [(model, report, size) for model, report in reports.items() for size in report.metrics]
    rows = [["", *(f"{model}: {_SIZES[size]}" for model, _, size in columns)]]
    rows.append(["images", *(str(report.num_images) for _, report, _ in columns)])
    rows.append(["words", *(str(report.num_words[size]) for _, report, size in columns)])
    for name, label in _LABELS.items():
        values = (report.metrics[size].get(name, "") for _, report, size in columns)
        rows.append([label, *map(str, values)])
    for label, field in (
        ("object precision: named objects that are present", "object_precision"),
        ("object recall: present objects that are named", "object_recall"),
    ):
        values = (getattr(report, field) if size == "all" else "" for _, report, size in columns)
        rows.append([label, *map(str, values)])
    tables = [markdown_table(rows)]
    for model, report in reports.items():
        names = ["num_images", "num_words", "recall", "precision", "pointing/map", "pointing/center", "mass/map"]
        names.append("mass/uniform")
        rows = [[model, *names]]
        for category, row in report.categories.items():
            rows.append([category, *(f"{row[name]:.3g}" if name in row else "" for name in names)])
        tables.append(markdown_table(rows))
    return "\n\n".join(tables)


def plot_examples(path: Path, results: Sequence[ImageGrounding]) -> bool:
    """Draw images with the boxes and the map of a word: the words with the highest attention mass in the box, relative
    to uniform attention, and those with the lowest. Without the extra ``plots`` warn and return False."""
    try:
        import matplotlib
    except ImportError:
        warnings.warn("the figure is not written: pip install 'captioning[plots]'", stacklevel=2)
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    best = [(max(result.words, key=_gain), result) for result in results if result.words]
    worst = [(min(result.words, key=_gain), result) for result in results if result.words]
    best.sort(key=lambda case: -_gain(case[0]))
    worst.sort(key=lambda case: _gain(case[0]))
    figure, panels = pyplot.subplots(2, _NUM_EXAMPLES, figsize=(3.2 * _NUM_EXAMPLES, 7), layout="constrained")
    for row, cases in zip(panels, (best, worst), strict=True):
        for axes in row:
            axes.set_axis_off()
        for axes, (word, result) in zip(row, cases, strict=False):
            _draw_case(axes, word, result)
    panels[0, 0].set_title("highest attention mass in the box", loc="left", fontweight="bold", pad=20)
    panels[1, 0].set_title("lowest attention mass in the box", loc="left", fontweight="bold", pad=20)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def _gain(word: WordGrounding) -> float:
    return word.mass["map"] - word.mass["uniform"]


def _draw_case(axes: Any, word: WordGrounding, result: ImageGrounding) -> None:
    from matplotlib.patches import Rectangle

    image, caption = open_image(result.record.image_path, 256), result.caption
    width, height = image.size
    left, top, right, bottom = caption.crop_box
    extent = (left * width, right * width, bottom * height, top * height)
    axes.imshow(image)
    attention_map = caption.attention_maps[word.position]
    axes.imshow(attention_map, extent=extent, cmap="hot", alpha=0.55, interpolation="bilinear")
    for box in boxes_by_category(result.record.boxes or ())[word.category]:
        corner, size = (
            (box.left * width, box.top * height),
            (
                (box.right - box.left) * width,
                (box.bottom - box.top) * height,
            ),
        )
        axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor="cyan", linewidth=1.5))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    values = f"mass {word.mass['map']:.2f} (uniform {word.mass['uniform']:.2f})"
    axes.text(0.5, -0.02, f"{caption.words[word.position]}: {values}", ha="center", va="top", transform=axes.transAxes)
