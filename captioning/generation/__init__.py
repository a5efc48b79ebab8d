"""Caption generation: greedy search, beam search and sampling.

The function ``beam_search`` is imported from the submodule of the same name.
"""

import importlib
from typing import TYPE_CHECKING, Any

from captioning.generation.config import GenerationConfig

if TYPE_CHECKING:
    from captioning.generation.beam_search import greedy_search
    from captioning.generation.constraints import mask_special_tokens
    from captioning.generation.decoding import generate
    from captioning.generation.hypothesis import Hypothesis
    from captioning.generation.sampling import sample

__all__ = ["GenerationConfig", "Hypothesis", "generate", "greedy_search", "mask_special_tokens", "sample"]

_SUBMODULES = {
    "Hypothesis": "hypothesis",
    "generate": "decoding",
    "greedy_search": "beam_search",
    "mask_special_tokens": "constraints",
    "sample": "sampling",
}


def __getattr__(name: str) -> Any:
    # Lazy imports: ``sample`` imports torch, which takes two seconds and which ONNX Runtime does not need.
    if name in _SUBMODULES:
        return getattr(importlib.import_module(f"{__name__}.{_SUBMODULES[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
