"""Average of the weights of several models with the same initial weights ("model soup", Wortsman et al. 2022).

The average of runs that continued from one model is often better than each of them, at the cost of one model. The
average of a pretrained and a fine-tuned model reduces forgetting (WiSE-FT, Wortsman et al. 2022).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from captioning.models.checkpoint import ModelFile, build_modules, read_model, save_model
from captioning.utils.errors import CaptioningError


def average_models(sources: Sequence[str | Path], weights: Sequence[float] | None, output: Path) -> None:
    """Write a model file with Σ_i w_i θ_i. Generation settings and attention mode are those of the first model.

    Args:
        sources: names of pretrained models, or paths of model files or checkpoints, of the same architecture.
        weights: one weight per model, which are divided by their sum; None for equal weights.
        output: the file to write. It has no calibration, since its scores differ from those of the models.
    """
    if len(sources) < 2:
        raise CaptioningError("expected at least two models to average")
    weights = [1.0] * len(sources) if weights is None else weights
    if len(weights) != len(sources):
        raise CaptioningError(f"--weights must have one value per model, got {len(weights)} for {len(sources)} models")
    if min(weights) < 0 or not sum(weights) > 0:
        raise CaptioningError("--weights must be >= 0, and at least one must be > 0")
    first = read_model(sources[0])
    architecture = _architecture(first)
    encoder, decoder, _ = build_modules(first)
    total = weights[0]
    for source, weight in zip(sources[1:], weights[1:], strict=True):
        model = read_model(source)
        for section, value in _architecture(model).items():
            if value != architecture[section]:
                raise CaptioningError(f"{source}: the {section} differs from that of {sources[0]}")
        total += weight
        other_encoder, other_decoder, _ = build_modules(model)
        for module, other in ((encoder, other_encoder), (decoder, other_decoder)):
            _interpolate_(module, other, weight / total if weight else 0.0)
    # The output contains all encoder tensors, so "weights" is omitted.
    header = {**first.header, "encoder": architecture["encoder"], "calibration": None}
    save_model(output, header, encoder, decoder, is_compact=False)


def _architecture(model: ModelFile) -> dict[str, Any]:
    """The sections of the header that averaged models share, without settings that have no effect on inference."""
    header = model.header
    encoder = {name: value for name, value in header["encoder"].items() if name != "weights"}
    decoder = {name: value for name, value in header["decoder"].items() if not name.endswith("dropout")}
    return {"encoder": encoder, "decoder": decoder, "vocabulary": header["vocabulary"]}


@torch.no_grad()
def _interpolate_(module: nn.Module, other: nn.Module, weight: float) -> None:
    """module ← (1 − weight) · module + weight · other, exact for equal tensors."""
    others = other.state_dict()
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            tensor.add_(others[name] - tensor, alpha=weight)
