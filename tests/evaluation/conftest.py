from typing import Any

import pytest
import torch
from torch import Tensor

from captioning.evaluation import faithfulness
from captioning.evaluation.feature_masking import attended_only_log_probs
from captioning.generation import GenerationConfig, Hypothesis, generate
from tests.evaluation.occlusion_stubs import NUM_LOCATIONS, FixedCaption, OneCellDecoder


@pytest.fixture
def fixed_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stubs have a fixed caption; other captioners generate theirs."""

    def generate_or_fixed(decoder, features: Tensor, config: GenerationConfig | FixedCaption, *args: Any):
        if not isinstance(config, FixedCaption):
            return generate(decoder, features, config, *args)
        hypothesis = Hypothesis(list(config), [0.0] * (len(config) + 1), torch.zeros(len(config), NUM_LOCATIONS))
        return [[hypothesis] for _ in features]

    def attended_only_or_zeros(decoder, features: Tensor, filler: Tensor, token_ids: list[int], *args: Any) -> Tensor:
        if not isinstance(decoder, OneCellDecoder):  # the stub has no steps
            return attended_only_log_probs(decoder, features, filler, token_ids, *args)
        return torch.zeros(len(token_ids) - 1, 2)

    monkeypatch.setattr(faithfulness, "generate", generate_or_fixed)
    monkeypatch.setattr(faithfulness, "attended_only_log_probs", attended_only_or_zeros)
