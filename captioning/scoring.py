"""Scores of any system's captions: read them, compare them with the references, and say how sure the figures are."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from captioning import datasets, metrics
from captioning.errors import CaptioningError
from captioning.text import tokenise

RESAMPLES = 1000
_NUMBERS = ("image_id", "cocoid", "imgid", "id")
_FILES = ("image", "filename", "file_name", "file", "path")


class Truth(NamedTuple):
    """What people said of each picture; a picture goes by its file's name, and by each number it has."""

    captions: list[list[str]]  # of each picture
    numbers: dict[str, int]  # where in the list a picture is, by each of its names
    training: list[str]  # captions of pictures of the training split, if there are any


def read_truth(path: Path) -> Truth:
    """References: COCO's annotations, Karpathy's JSON, a folder in any layout, or text with a line for each picture.

    A line of text has one reference or several, with tabs between them.
    """
    if path.suffix == ".txt" and path.is_file():
        lines = _lines(path)
        captions = [[part for part in line.split("\t") if part.strip()] for line in lines]
        if not all(captions):
            raise CaptioningError(f"{path}, line {captions.index([]) + 1}: has no reference")
        return Truth(captions, {str(number): number for number in range(len(lines))}, [])
    if path.suffix == ".json" and path.is_file():
        entries = _json(path)
    else:
        records = datasets.read(datasets.locate(path))
        entries = [
            {"file": record.image.name, "captions": record.captions, "split": record.split, **record.details}
            for record in records
        ]
    try:
        return _truth(entries)
    except (KeyError, TypeError, AttributeError) as error:
        raise CaptioningError(
            f"{path}: no references in a layout that is known ({type(error).__name__}: {error}); "
            "'captioning score --help' names those that are"
        ) from None


def _truth(entries: Any) -> Truth:
    if isinstance(entries, Mapping) and "annotations" in entries:  # COCO
        by_number: dict[Any, dict[str, Any]] = {}
        files = {image["id"]: image.get("file_name") for image in entries.get("images", [])}
        for one in entries["annotations"]:
            number = one["image_id"]
            entry = by_number.setdefault(number, {"id": number, "file": files.get(number), "captions": []})
            entry["captions"].append(one["caption"])
        entries = by_number.values()
    elif isinstance(entries, Mapping):  # Karpathy
        entries = [
            {**image, "captions": [said.get("raw") or " ".join(said["tokens"]) for said in image["sentences"]]}
            for image in entries["images"]
        ]
    captions: list[list[str]] = []
    numbers: dict[str, int] = {}
    training: list[str] = []
    for entry in entries:
        if entry.get("split") in ("train", "restval"):
            training += entry["captions"]
        for name in _names(entry):
            numbers[name] = len(captions)
        captions.append(list(entry["captions"]))
    return Truth(captions, numbers, training)


def read_captions(path: Path) -> dict[str, str]:
    """A system's captions: COCO results, Karpathy's JSON, JSONL of 'captioning predict', or a line for each picture."""
    if path.suffix == ".txt":
        return {str(number): line for number, line in enumerate(_lines(path))}
    entries = _json(path)
    if isinstance(entries, Mapping):
        entries = entries.get("images", [])
    captions: dict[str, str] = {}
    for number, entry in enumerate(entries, 1):
        names = _names(entry) if isinstance(entry, Mapping) else []
        said = entry.get("caption") or entry.get("sentence") if names else None
        if isinstance(said, Sequence | Mapping) and not isinstance(said, str):
            said = (said if isinstance(said, Mapping) else said[0]).get("raw")
        if not isinstance(said, str):
            raise CaptioningError(
                f'{path}, entry {number}: expected such as {{"image_id": 1, "caption": "a dog"}}, '
                'or "image" and the name of a file instead of "image_id"'
            )
        if names[0] in captions:
            raise CaptioningError(f"{path}, entry {number}: a second caption of picture {names[0]}")
        captions[names[0]] = said
    return captions


def _names(entry: Mapping[str, Any]) -> list[str]:
    files = [Path(entry[field]).name for field in _FILES if entry.get(field)]
    return files + [str(entry[field]) for field in _NUMBERS if entry.get(field) is not None]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CaptioningError(f"{path}: cannot be read ({error})") from None


def _json(path: Path) -> Any:
    text = "\n".join(_lines(path))
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        return json.loads(text)
    except ValueError as error:
        raise CaptioningError(f"{path}: not JSON ({error})") from None


class Scored(NamedTuple):
    """A system's figures, and what each caption has to do with those that can be drawn anew."""

    figures: dict[str, float]
    bleu_counts: np.ndarray  # (N, 10)
    means: dict[str, np.ndarray]  # scores that are a mean over the captions, each (N,)

    def resampled(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """The figures of other draws of the pictures (R, N), each told by how often it was drawn: (R,) of each."""
        bleu = metrics.bleu_of(weights @ self.bleu_counts)
        figures = {f"bleu{order}": bleu[:, order - 1] for order in range(1, 5)}
        return figures | {name: weights @ values / weights.sum(axis=1) for name, values in self.means.items()}


def score(
    captions: Sequence[metrics.Words],
    references: Sequence[Sequence[metrics.Words]],
    training: Sequence[metrics.Words] = (),
) -> Scored:
    """All figures but METEOR of tokenised captions."""
    counts = metrics.bleu_counts(captions, references)
    means = {
        "rouge_l": np.array(metrics.rouge_l(captions, references)),
        "cider": np.array(metrics.CiderD(references)(captions)),
    }
    figures = {f"bleu{order}": float(value) for order, value in enumerate(metrics.bleu_of(counts.sum(axis=0)), 1)}
    figures |= {name: float(values.mean()) for name, values in means.items()}
    figures |= metrics.variety(captions)
    if training:
        figures["verbatim"] = metrics.verbatim(captions, training)
    return Scored(figures, counts, means)


def meteor(captions: Sequence[metrics.Words], references: Sequence[Sequence[metrics.Words]]) -> dict[str, float]:
    """METEOR, while saying that one has to wait for it; nothing but a line of advice without the extra ``eval``."""
    print("METEOR comes from a Java program, which takes some 20 seconds ...", file=sys.stderr, flush=True)
    score = metrics.meteor(captions, references)
    if score is None:
        print("METEOR is left out: pip install 'captioning[eval]' brings the program", file=sys.stderr, flush=True)
    return {} if score is None else {"meteor": score}


def draws(pictures: int, seed: int = 0) -> np.ndarray:
    """How often each picture is drawn, in each of many draws of as many as there are (R, N)."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(pictures, np.full(pictures, 1 / pictures), size=RESAMPLES)


def between(resampled: np.ndarray) -> np.ndarray:
    """The bounds (2, …) that 95 % of the draws (R, …) of a figure lie between."""
    return np.quantile(resampled, (0.025, 0.975), axis=0)


def intervals(scored: Scored, weights: np.ndarray) -> dict[str, tuple[float, float]]:
    """Between which 95 % of the draws lie."""
    bounds = {name: between(values) for name, values in scored.resampled(weights).items()}
    return {name: (float(low), float(high)) for name, (low, high) in bounds.items()}


def chance_of_no_difference(one: Scored, other: Scored, weights: np.ndarray) -> dict[str, float]:
    """A paired bootstrap test, two-sided: how often the pictures, drawn anew, turn the comparison round."""
    mine, theirs = one.resampled(weights), other.resampled(weights)
    chances = {}
    for name, values in mine.items():
        difference = values - theirs[name]
        turned = min((difference <= 0).mean(), (difference >= 0).mean())
        chances[name] = float(min(1.0, 2 * turned))
    return chances


class Report(NamedTuple):
    """One system's figures, or two side by side, over the same pictures."""

    names: list[str]
    pictures: int
    systems: list[Scored]
    bounds: list[dict[str, tuple[float, float]]]  # of each system; empty without a bootstrap
    chances: dict[str, float]  # of two systems, that there is no difference; else empty

    def as_json(self) -> dict[str, Any]:
        systems = [
            {"captions": name, "scores": scored.figures, **({"intervals": bounds} if bounds else {})}
            for name, scored, bounds in zip(self.names, self.systems, self.bounds, strict=True)
        ]
        return {"pictures": self.pictures, "systems": systems, **({"p": self.chances} if self.chances else {})}

    def as_table(self) -> str:
        rows = [["", *self.names, *(["p"] if self.chances else [])]]
        for name in self.systems[0].figures:
            cells = []
            for scored, bounds in zip(self.systems, self.bounds, strict=True):
                figure = f"{scored.figures[name]:.4f}" if name != "vocabulary" else f"{scored.figures[name]:.0f}"
                between = f" [{bounds[name][0]:.4f}, {bounds[name][1]:.4f}]" if name in bounds else ""
                cells.append(figure + between)
            chance = [f"{self.chances[name]:.3f}" if name in self.chances else ""] if self.chances else []
            rows.append([name, *cells, *chance])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, f"{self.pictures} pictures"])


def compare(captions: Sequence[Path], references: Path, bootstrap: bool = False, seed: int = 0) -> Report:
    """Score one system's captions, or two systems' of the same pictures."""
    truth = read_truth(references)
    said = [_placed(path, truth) for path in captions]
    pictures = sorted(said[0])
    for path, own in zip(captions[1:], said[1:], strict=True):
        if own.keys() != said[0].keys():
            raise CaptioningError(f"{path}: not of the same pictures as {captions[0]}, so the two cannot be compared")
    wanted = [[tokenise(caption) for caption in truth.captions[number]] for number in pictures]
    training = [tokenise(caption) for caption in truth.training]
    systems = []
    for own in said:
        words = [tokenise(own[number]) for number in pictures]
        scored = score(words, wanted, training)
        systems.append(scored._replace(figures=scored.figures | meteor(words, wanted)))
    weights = draws(len(pictures), seed)
    return Report(
        names=[path.name for path in captions],
        pictures=len(pictures),
        systems=systems,
        bounds=[intervals(scored, weights) if bootstrap else {} for scored in systems],
        chances=chance_of_no_difference(systems[0], systems[1], weights) if len(systems) == 2 else {},
    )


def _placed(path: Path, truth: Truth) -> dict[int, str]:
    """The captions of a file, by where in the references their pictures are."""
    captions = read_captions(path)
    if not captions:
        raise CaptioningError(f"{path}: has no captions")
    unknown = [name for name in captions if name not in truth.numbers]
    if unknown:
        raise CaptioningError(
            f"{path}: {len(unknown)} of {len(captions)} captions have no references (such as that of {unknown[0]})"
        )
    return {truth.numbers[name]: caption for name, caption in captions.items()}
