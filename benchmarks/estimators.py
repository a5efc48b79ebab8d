"""Bias and variance of the gradient estimators of hard attention against the exact gradient: ``make bench-estimators``.

In a tiny case (nine locations, captions of one to three words) all location sequences can be enumerated, so the bound
L_s and its gradient are known exactly. Each estimator is then evaluated thousands of times.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from captioning.models.attention import attend_expectation
from captioning.models.decoder import Decoder
from captioning.objectives import (
    LearnedBaseline,
    LeaveOneOut,
    Reinforce,
    StraightThroughGumbel,
    TopKMarginalized,
    VariationalBound,
)
from captioning.objectives.base import caption_nll
from captioning.objectives.location_samples import LocationSamples, attend_sequence
from captioning.objectives.variational_bound import BoundEstimate
from captioning.preprocessing.vocabulary import Vocabulary

Gradients = dict[str, Tensor]
LENGTHS = (3, 1, 2, 3)  # they differ by a factor of three, like those of nine in ten captions of Flickr8k


class Case(NamedTuple):
    """A decoder with random weights, and a batch."""

    decoder: Decoder
    features: Tensor  # (B, L, D)
    token_ids: Tensor  # (B, C, T+1)
    lengths: Tensor  # (B, C)

    @property
    def num_captions(self) -> int:
        return self.lengths.numel()


class Moments(NamedTuple):
    """Moments of a gradient estimate."""

    mean: Gradients
    variance: Gradients  # of one estimate from one pass over the batch
    standard_error: Gradients  # of the mean


def make_case(seed: int, num_locations: int, lengths: Sequence[int] = LENGTHS, **settings) -> Case:
    """Two images with two captions each, in double precision."""
    torch.manual_seed(seed)
    vocabulary_size, feature_size = 9, 4
    sizes = {"embedding_size": 4, "hidden_size": 5, "attention_size": 4, "dropout": 0.0, "attention": "hard"}
    decoder = Decoder(vocabulary_size, feature_size, num_locations, **{**sizes, **settings}).double()
    with torch.no_grad():  # larger than the initialization, so that attention weights and rewards differ
        for parameter in decoder.parameters():
            parameter.normal_(std=0.8)
    token_ids = torch.full((2, 2, max(lengths) + 1), Vocabulary.PAD_ID)
    for (image, caption), length in zip(itertools.product(range(2), range(2)), lengths, strict=True):
        words = torch.randint(4, vocabulary_size, (length - 1,)).tolist()
        token_ids[image, caption, : length + 1] = torch.tensor([Vocabulary.BOS_ID, *words, Vocabulary.EOS_ID])
    features = torch.randn(2, num_locations, feature_size, dtype=torch.double)
    return Case(decoder, features, token_ids, torch.tensor(lengths).view(2, 2))


def exact_gradient(
    case: Case, expectation_prob: float = 0.0, entropy_weight: float = 0.0, score_function_weight: float = 1.0
) -> Gradients:
    """The gradient of −L_s, summed over all location sequences.

    Args:
        case: the case.
        expectation_prob: weight of soft attention: (1 − prob) L_s + prob · log p(y | α, a).
        entropy_weight: λ_e of Σ_s p(s) ∂H[α]; the effect of the locations on H is left out, as in the paper.
        score_function_weight: λ_r.
    """
    num_locations, num_steps = case.features.shape[1], int(case.lengths.max())
    sequences = torch.tensor(list(itertools.product(range(num_locations), repeat=num_steps)))  # (Q, T)
    count = len(sequences)
    token_ids, lengths = (part.repeat_interleave(count, dim=1) for part in (case.token_ids, case.lengths))
    locations = sequences.repeat(case.lengths.shape[1], 1).expand(len(case.features), -1, -1)  # (B, C · Q, T)
    output = case.decoder(case.features, token_ids, lengths, attend_sequence(locations, case.decoder))
    samples = LocationSamples(output, count, case.decoder)
    log_probs = (samples.sampled_log_probs * samples.token_mask).sum(-1)  # (R, Q)
    # A caption that ends early has each of its sequences several times, with different locations after its end.
    num_copies = num_locations ** (num_steps - case.lengths.flatten())[:, None]
    probs, rewards = log_probs.exp() / num_copies, samples.rewards.sum(-1)
    pathwise = (probs.detach() * rewards).sum()
    score_function = (probs * rewards.detach()).sum()
    entropy = (probs.detach() * samples.entropies.sum(-1)).sum()
    soft = case.decoder(case.features, case.token_ids, case.lengths, attend_expectation)
    soft_nll = caption_nll(soft.logits, soft.targets, 1)
    bound = pathwise + score_function_weight * score_function
    loss = -(1 - expectation_prob) * bound + expectation_prob * soft_nll - entropy_weight * entropy
    return gradients(case.decoder, loss / case.num_captions)


def estimate(case: Case, objective: VariationalBound, copies: int, generator: torch.Generator) -> BoundEstimate:
    """The mean of ``copies`` estimates."""
    num_samples = objective.estimator.num_samples
    features = case.features.repeat(copies, 1, 1)
    token_ids, lengths = (
        part.repeat(copies, *(1 for _ in part.shape[1:])).repeat_interleave(num_samples, dim=1)
        for part in (case.token_ids, case.lengths)
    )
    mask = objective.sample_expectation_mask(len(features), generator)
    output = case.decoder(features, token_ids, lengths, objective.attention_fn(mask, generator))
    return objective.estimate(LocationSamples(output, num_samples, case.decoder), copies * case.num_captions)


def prepare(case: Case, objective: VariationalBound, seed: int = 0) -> VariationalBound:
    """Fit the state of the objective (baseline, averages), and keep it fixed from then on."""
    objective.estimator.setup(case.decoder.hidden_size)
    objective = objective.double().train()
    generator = torch.Generator().manual_seed(seed)
    parameters = list(objective.parameters())
    optimizer = torch.optim.Adam(parameters, lr=0.05) if parameters else None
    for _ in range(300 if optimizer else 50):
        bound = estimate(case, objective, 50, generator)
        if optimizer:
            optimizer.zero_grad()
            bound.terms["baseline"].backward()
            optimizer.step()
    return objective.eval()


def moments(case: Case, objective: VariationalBound, num_batches: int, copies: int, seed: int = 0) -> Moments:
    """Moments of ``num_batches`` gradients, each the mean of ``copies`` estimates."""
    generator = torch.Generator().manual_seed(seed)
    samples = [gradients(case.decoder, estimate(case, objective, copies, generator).loss) for _ in range(num_batches)]
    stacked = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
    variances = {name: values.var(dim=0) for name, values in stacked.items()}
    return Moments(
        mean={name: values.mean(dim=0) for name, values in stacked.items()},
        variance={name: variance * copies for name, variance in variances.items()},
        standard_error={name: (variance / num_batches).sqrt() for name, variance in variances.items()},
    )


def relative_bias(estimated: Moments, exact: Gradients) -> tuple[float, float]:
    """|mean − exact| / |exact| over all parameters, and its expectation for an unbiased estimator."""
    squared_error = sum(float((estimated.mean[name] - exact[name]).square().sum()) for name in exact)
    norm = _squared_norm(exact)
    return (squared_error / norm) ** 0.5, (_squared_norm(estimated.standard_error) / norm) ** 0.5


def gradients(decoder: Decoder, loss: Tensor) -> Gradients:
    """The gradient of a loss for every parameter of the decoder."""
    names, parameters = zip(*decoder.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def _squared_norm(tensors: Gradients) -> float:
    return sum(float(tensor.square().sum()) for tensor in tensors.values())


# The paper's is first: the others are compared with it.
ESTIMATORS: dict[str, Callable[[], VariationalBound]] = {
    "Reinforce": lambda: VariationalBound(Reinforce(), expectation_prob=0.0),
    "Reinforce, expectation 1/2": lambda: VariationalBound(Reinforce(), expectation_prob=0.5),
    "LearnedBaseline": lambda: VariationalBound(LearnedBaseline(), expectation_prob=0.0),
    "LeaveOneOut, 2 samples": lambda: VariationalBound(LeaveOneOut(2), expectation_prob=0.0),
    "LeaveOneOut, 4 samples": lambda: VariationalBound(LeaveOneOut(4), expectation_prob=0.0),
    "TopKMarginalized, k = 2": lambda: VariationalBound(TopKMarginalized(2), expectation_prob=0.0),
    "TopKMarginalized, k = 4": lambda: VariationalBound(TopKMarginalized(4), expectation_prob=0.0),
    "StraightThroughGumbel": lambda: VariationalBound(StraightThroughGumbel(), expectation_prob=0.0),
    "expectation (soft)": lambda: VariationalBound(Reinforce(), expectation_prob=1.0),
}


class Row(NamedTuple):
    """A row of the table; lists are over the cases."""

    name: str
    num_passes: int  # decoder passes per word
    milliseconds: float
    bias: list[float]
    noise: list[float]
    variance: list[float]  # relative to the squared norm of the exact gradient


def measure(name: str, cases: list[Case], num_batches: int, copies: int) -> Row:
    """Bias and variance of an estimator in all cases."""
    biases, noises, variances = [], [], []
    for case in cases:
        objective = prepare(case, ESTIMATORS[name]())
        exact, estimated = exact_gradient(case), moments(case, objective, num_batches, copies)
        bias, noise = relative_bias(estimated, exact)
        biases.append(bias)
        noises.append(noise)
        variances.append(sum(float(part.sum()) for part in estimated.variance.values()) / _squared_norm(exact))
    estimator = ESTIMATORS[name]().estimator
    num_alternatives = estimator.k if isinstance(estimator, TopKMarginalized) else 0
    return Row(name, estimator.num_samples * (1 + num_alternatives), 0.0, biases, noises, variances)


def time_all(repeats: int) -> dict[str, float]:
    """Median milliseconds of a training step at the size of configs/shapes-hard.yaml, measured in alternation."""
    torch.manual_seed(0)
    sizes = {"embedding_size": 64, "hidden_size": 128, "attention_size": 64, "attention_score": "scaled_dot"}
    decoder = Decoder(40, 64, 64, attention="hard", **sizes)
    lengths = torch.randint(6, 16, (16, 5)).sort(dim=0, descending=True).values
    case = Case(decoder, torch.randn(16, 64, 64), torch.randint(4, 40, (16, 5, 16)), lengths)
    objectives = {name: make_objective() for name, make_objective in ESTIMATORS.items()}
    for objective in objectives.values():
        objective.estimator.setup(decoder.hidden_size)
    generator = torch.Generator().manual_seed(0)
    times: dict[str, list[float]] = {name: [] for name in objectives}
    for _ in range(repeats):
        for name, objective in objectives.items():
            start = time.perf_counter()
            estimate(case, objective, 1, generator).loss.backward()
            times[name].append(time.perf_counter() - start)
    return {name: 1000 * statistics.median(values) for name, values in times.items()}


def table(rows: list[Row]) -> str:
    """Variance at equal cost, by decoder passes and by time; that of the paper's estimator is 1."""
    paper = rows[0]
    lines = [
        f"{'':26} {'bias':>13} {'noise':>6} {'passes':>6} {'ms':>6}   variance at equal cost, Reinforce = 1",
        f"{'':26} {'':>13} {'':>6} {'':>6} {'':>6}   {'by passes':>20} {'by time':>10}",
    ]
    for row in rows:
        by_passes = relative_variance(row, paper)
        by_time = statistics.median(by_passes) / row.num_passes * row.milliseconds / paper.milliseconds
        lines.append(
            f"{row.name:26} {statistics.median(row.bias):13.3f} {statistics.median(row.noise):6.3f} "
            f"{row.num_passes:6d} {row.milliseconds:6.1f}   "
            f"{statistics.median(by_passes):6.3f} ({min(by_passes):.3f}-{max(by_passes):.3f}) {by_time:10.3f}"
        )
    return "\n".join(lines)


def relative_variance(row: Row, paper: Row) -> list[float]:
    """Per case, the variance of as many estimates as equal decoder passes allow, relative to ``paper``."""
    return [
        own * row.num_passes / (other * paper.num_passes)
        for own, other in zip(row.variance, paper.variance, strict=True)
    ]


def plot(rows: list[Row], path: Path) -> None:
    """Bars are medians, dots are cases; orange marks a biased estimator."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for index, row in enumerate(rows):
        ratios = relative_variance(row, rows[0])
        is_biased = statistics.median(row.bias) > 2 * statistics.median(row.noise)
        for axes, values in ((left, ratios), (right, row.bias)):
            axes.barh(index, statistics.median(values), color="tab:orange" if is_biased else "tab:blue", alpha=0.6)
            axes.plot(values, [index] * len(values), "k.", markersize=4)
        right.plot([statistics.median(row.noise)] * 2, [index - 0.4, index + 0.4], color="tab:red")
    left.axvline(1 / 3, color="grey", linestyle=":")
    left.set_yticks(range(len(rows)), [row.name for row in rows])
    left.invert_yaxis()
    left.set_title("variance at equal cost (decoder passes), Reinforce = 1\ndotted: one third")
    right.set_title("bias, relative to the norm of the exact gradient\nred: noise floor of the measurement")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimators", description=__doc__.splitlines()[0])
    parser.add_argument("--plot", type=Path, default=Path("docs/estimators.png"), help="file of the plot")
    parser.add_argument("--num-cases", type=int, default=8, help="random cases; the table has medians (default 8)")
    parser.add_argument("--num-batches", type=int, default=60, help="of 100 estimates each, per case (default 60)")
    parser.add_argument(
        "--lengths",
        type=int,
        nargs=4,
        default=LENGTHS,
        metavar="N",
        help="number of tokens of the four captions (default 3 1 2 3)",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)  # the case is so small that more threads only wait for each other
    cases = [make_case(seed, 9, options.lengths) for seed in range(options.num_cases)]
    rows = [measure(name, cases, options.num_batches, copies=100) for name in tqdm(ESTIMATORS, unit="estimator")]
    times = time_all(repeats=15)
    rows = [row._replace(milliseconds=times[row.name]) for row in rows]
    print(f"{options.num_cases} random cases of {cases[0].features.shape[1]} locations; medians over the cases\n")
    print(table(rows))
    options.plot.parent.mkdir(parents=True, exist_ok=True)
    plot(rows, options.plot)
    print(f"\nplot: {options.plot}")


if __name__ == "__main__":
    main()
