"""Bias and variance of hard attention's estimators against the exact gradient: ``make bench-estimators``.

On a tiny case (nine places, captions of one to three words) all sequences of places can be enumerated, so the bound
L_s and its gradient are known exactly. Every estimator is then asked tens of thousands of times.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from captioning.preprocessing.text import Vocabulary
from torch import Tensor
from tqdm import tqdm

from captioning.models import attention
from captioning.models.decoder import Decoder
from captioning.objectives import losses

Gradients = dict[str, Tensor]


class Case(NamedTuple):
    """A decoder with random weights, and a batch for it to read."""

    decoder: Decoder
    annotations: Tensor  # (B, L, D)
    words: Tensor  # (B, C, T+1)
    lengths: Tensor  # (B, C)


class Moments(NamedTuple):
    """What many estimates of a gradient have been like."""

    mean: Gradients
    variance: Gradients  # of one estimate, from one reading of the batch
    error: Gradients  # standard error of the mean


# They differ threefold, as those of nine in ten of Flickr8k's captions do.
LENGTHS = (3, 1, 2, 3)


def make_case(seed: int, places: int, lengths: Sequence[int] = LENGTHS, **settings) -> Case:
    """Two pictures with two captions each, so many words long, in double precision."""
    torch.manual_seed(seed)
    words, width = 9, 4
    sizes = {"embedding_size": 4, "hidden_size": 5, "attention_size": 4, "dropout": 0.0, "attention": "hard"}
    decoder = Decoder(words, width, places, **{**sizes, **settings}).double()
    with torch.no_grad():  # wider than they begin, as if something had been learnt: maps and rewards differ
        for parameter in decoder.parameters():
            parameter.normal_(std=0.8)
    ids = torch.full((2, 2, max(lengths) + 1), Vocabulary.PAD)
    for (picture, caption), length in zip(itertools.product(range(2), range(2)), lengths, strict=True):
        inner = torch.randint(4, words, (length - 1,)).tolist()
        sentence = torch.tensor([Vocabulary.START, *inner, Vocabulary.END])
        ids[picture, caption, : len(sentence)] = sentence
    annotations = torch.randn(2, places, width, dtype=torch.double)
    return Case(decoder, annotations, ids, torch.tensor(lengths).view(2, 2))


def exact(case: Case, expected: float = 0.0, entropy_weight: float = 0.0) -> Gradients:
    """The gradient of −L_s, every sequence of places summed.

    Args:
        case: what is read.
        expected: share of the loss that the coin's expectation makes up: (1 − share) L_s + share · log p(y | α, a).
        entropy_weight: λ_e of Σ_s p(s) ∂H[α]: the paper's term leaves out how the places change H.
    """
    places = case.annotations.shape[1]
    steps = int(case.lengths.max())
    sequences = torch.tensor(list(itertools.product(range(places), repeat=steps)))  # (Q, T)
    captions, count = case.words.shape[1], len(sequences)
    words, lengths = (part.repeat_interleave(count, dim=1) for part in (case.words, case.lengths))
    forced = iter(sequences.repeat(captions, 1).T)  # T × (C · Q,)

    def choose(scores: Tensor, annotations: Tensor) -> attention.Look:
        chosen = next(forced)[: scores.shape[1]].expand(scores.shape[:2])
        return attention.attend_at(chosen, scores, annotations)

    reading = case.decoder(case.annotations, words, lengths, choose)
    sampled = losses.Sampled.of(reading, count, case.decoder.elsewhere)
    chosen = sampled.attention_log_probs.gather(-1, sampled.places[..., None]).squeeze(-1)
    # A caption that ends early has its sequences many times over, alike but for places that are never looked at.
    copies = places ** (steps - case.lengths.flatten())[:, None]  # (B · C, 1)
    chances = chosen.sum(-1).exp() / copies
    bound = (chances * sampled.rewards.sum(-1)).sum()
    entropies = -(sampled.attention_log_probs.exp() * sampled.attention_log_probs).sum((-1, -2))
    entropy = (chances.detach() * entropies).sum()
    by_expectation = case.decoder(case.annotations, case.words, case.lengths, attention.expect)
    soft = losses.likelihood(by_expectation.logits, by_expectation.targets, 1)
    loss = (1 - expected) * -bound + expected * soft - entropy_weight * entropy
    return _gradients(case.decoder, loss / case.lengths.numel())


def estimate(case: Case, hard: losses.HardLoss, copies: int, generator: torch.Generator) -> losses.HardParts:
    """The loss whose gradient is the mean of so many estimates."""
    annotations = case.annotations.repeat(copies, 1, 1)
    words, lengths = (
        part.repeat(copies, *(1 for _ in part.shape[1:])).repeat_interleave(hard.samples, dim=1)
        for part in (case.words, case.lengths)
    )
    choose = hard.choose(hard.toss(len(annotations), generator), generator)
    reading = case.decoder(annotations, words, lengths, choose)
    return hard(losses.Sampled.of(reading, hard.samples, case.decoder.elsewhere), copies * case.lengths.numel())


def prepare(case: Case, seed: int = 0, **settings) -> losses.HardLoss:
    """An estimator whose baseline has settled, and is held still from then on."""
    hard = losses.HardLoss(hidden_size=5, **settings).double()
    generator = torch.Generator().manual_seed(seed)
    learning = list(hard.parameters())
    optimizer = torch.optim.Adam(learning, lr=0.05) if learning else None
    for _ in range(300 if optimizer else 50):
        total = estimate(case, hard, 50, generator).total
        if optimizer:
            optimizer.zero_grad()
            for parameter, gradient in zip(learning, torch.autograd.grad(total, learning), strict=True):
                parameter.grad = gradient
            optimizer.step()
    return hard.eval()


def moments(case: Case, hard: losses.HardLoss, batches: int, copies: int, seed: int = 0) -> Moments:
    """Mean and variance over ``batches`` gradients, each the mean of ``copies`` estimates."""
    generator = torch.Generator().manual_seed(seed)
    gradients = [_gradients(case.decoder, estimate(case, hard, copies, generator).total) for _ in range(batches)]
    stacked = {name: torch.stack([one[name] for one in gradients]) for name in gradients[0]}
    spread = {name: values.var(dim=0) for name, values in stacked.items()}
    return Moments(
        mean={name: values.mean(dim=0) for name, values in stacked.items()},
        variance={name: variance * copies for name, variance in spread.items()},
        error={name: (variance / batches).sqrt() for name, variance in spread.items()},
    )


def bias(found: Moments, truth: Gradients) -> tuple[float, float]:
    """|mean − exact| / |exact| over all parameters, and how much of it chance alone would give."""
    size = _square(truth)
    apart = sum(float((found.mean[name] - truth[name]).square().sum()) for name in truth)
    return (apart / size) ** 0.5, (_square(found.error) / size) ** 0.5


def _gradients(decoder: Decoder, loss: Tensor) -> Gradients:
    names, parameters = zip(*decoder.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def _square(tensors: Gradients) -> float:
    return sum(float(tensor.square().sum()) for tensor in tensors.values())


# The paper's comes first: the others are compared with it.
CONTENDERS: dict[str, dict] = {
    "reinforce": {"estimator": "reinforce", "expected": 0.0},
    "reinforce, coin 1/2": {"estimator": "reinforce", "expected": 0.5},
    "learned": {"estimator": "learned", "expected": 0.0},
    "leave_one_out, 2 samples": {"estimator": "leave_one_out", "samples": 2, "expected": 0.0},
    "leave_one_out, 4 samples": {"estimator": "leave_one_out", "samples": 4, "expected": 0.0},
    "top_k, K = 2": {"estimator": "top_k", "candidates": 2, "expected": 0.0},
    "top_k, K = 4": {"estimator": "top_k", "candidates": 4, "expected": 0.0},
    "gumbel": {"estimator": "gumbel", "expected": 0.0},
    "expectation (soft)": {"estimator": "reinforce", "expected": 1.0},
}


class Row(NamedTuple):
    """A line of the table; lists are over the cases."""

    name: str
    reads: int  # places looked at for each word
    milliseconds: float
    bias: list[float]
    noise: list[float]
    variance: list[float]  # relative to the exact gradient's square


def measure(name: str, settings: dict, cases: list[Case], batches: int, copies: int) -> Row:
    biases, noises, variances = [], [], []
    for case in cases:
        hard = prepare(case, **settings)
        truth, found = exact(case), moments(case, hard, batches, copies)
        apart, noise = bias(found, truth)
        biases.append(apart)
        noises.append(noise)
        variances.append(sum(float(part.sum()) for part in found.variance.values()) / _square(truth))
    others_read = hard.candidates if settings["estimator"] == "top_k" else 0
    return Row(name, hard.samples * (1 + others_read), 0.0, biases, noises, variances)


def time_all(repeats: int) -> dict[str, float]:
    """Milliseconds of a training step of each contender, at the size of configs/shapes-hard.yaml; taken in turns."""
    torch.manual_seed(0)
    decoder = Decoder(
        40, 64, 64, embedding_size=64, hidden_size=128, attention_size=64, score="scaled_dot", attention="hard"
    )
    lengths = torch.randint(6, 16, (16, 5)).sort(dim=0, descending=True).values
    case = Case(decoder, torch.randn(16, 64, 64), torch.randint(4, 40, (16, 5, 16)), lengths)
    hards = {name: losses.HardLoss(hidden_size=128, **settings) for name, settings in CONTENDERS.items()}
    generator = torch.Generator().manual_seed(0)
    times: dict[str, list[float]] = {name: [] for name in hards}
    for _ in range(repeats):
        for name, hard in hards.items():
            begin = time.perf_counter()
            estimate(case, hard, 1, generator).total.backward()
            times[name].append(time.perf_counter() - begin)
    return {name: 1000 * statistics.median(taken) for name, taken in times.items()}


def table(rows: list[Row]) -> str:
    """Variance at equal cost, the paper's being 1: by places read, and by time."""
    paper = rows[0]
    lines = [
        f"{'':26} {'bias':>13} {'noise':>6} {'reads':>6} {'ms':>6}   variance at equal cost, paper = 1",
        f"{'':26} {'':>13} {'':>6} {'':>6} {'':>6}   {'by reads':>20} {'by time':>10}",
    ]
    for row in rows:
        by_reads = relative(row, paper)
        by_time = statistics.median(by_reads) / row.reads * row.milliseconds / paper.milliseconds
        lines.append(
            f"{row.name:26} {statistics.median(row.bias):13.3f} {statistics.median(row.noise):6.3f} {row.reads:6d} "
            f"{row.milliseconds:6.1f}   {statistics.median(by_reads):6.3f} ({min(by_reads):.3f}-{max(by_reads):.3f}) "
            f"{by_time:10.3f}"
        )
    return "\n".join(lines)


def relative(row: Row, paper: Row) -> list[float]:
    """For each case how the variance of as many estimates as the same number of places read allows compares."""
    return [own * row.reads / (other * paper.reads) for own, other in zip(row.variance, paper.variance, strict=True)]


def plot(rows: list[Row], path: Path) -> None:
    """A bar for the median, a dot for each case; orange where the mean is not the exact gradient."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for place, row in enumerate(rows):
        ratios = relative(row, rows[0])
        biased = statistics.median(row.bias) > 2 * statistics.median(row.noise)
        for axes, values in ((left, ratios), (right, row.bias)):
            axes.barh(place, statistics.median(values), color="tab:orange" if biased else "tab:blue", alpha=0.6)
            axes.plot(values, [place] * len(values), "k.", markersize=4)
        right.plot([statistics.median(row.noise)] * 2, [place - 0.4, place + 0.4], color="tab:red")
    left.axvline(1 / 3, color="grey", linestyle=":")
    left.set_yticks(range(len(rows)), [row.name for row in rows])
    left.invert_yaxis()
    left.set_title("variance at equal cost (places read), the paper's = 1\ndotted: a third of it")
    right.set_title("bias, relative to the exact gradient\nred: what chance alone gives")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, default=Path("docs/estimators.png"), help="where the plot goes")
    parser.add_argument("--cases", type=int, default=8, help="random cases; the table gives their median (default 8)")
    parser.add_argument("--batches", type=int, default=60, help="of 100 estimates each, for each case (default 60)")
    parser.add_argument(
        "--lengths",
        type=int,
        nargs=4,
        default=LENGTHS,
        metavar="N",
        help="words of the four captions (default 3 1 2 3)",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)  # the case is so small that threads would only wait for each other
    cases = [make_case(seed, 9, options.lengths) for seed in range(options.cases)]
    rows = [
        measure(name, settings, cases, options.batches, copies=100)
        for name, settings in tqdm(CONTENDERS.items(), unit="estimator")
    ]
    times = time_all(repeats=15)
    rows = [row._replace(milliseconds=times[row.name]) for row in rows]
    print(f"{options.cases} random cases of {cases[0].annotations.shape[1]} places; medians over the cases\n")
    print(table(rows))
    options.plot.parent.mkdir(parents=True, exist_ok=True)
    plot(rows, options.plot)
    print(f"\nplot: {options.plot}")


if __name__ == "__main__":
    main()
