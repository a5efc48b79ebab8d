"""Image captioning with visual attention: generates a caption and an attention map for each of its words."""

import importlib
from typing import TYPE_CHECKING, Any

from captioning.models.pretrained import list_pretrained
from captioning.utils.errors import CaptioningError

if TYPE_CHECKING:
    from captioning.caption import Caption
    from captioning.captioner import Captioner

__version__ = "0.1.0"
__all__ = ["Caption", "Captioner", "CaptioningError", "__version__", "list_pretrained"]

_SUBMODULES = {"Caption": "caption", "Captioner": "captioner"}

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        # Importing torch takes two seconds, which "captioning --help" avoids.
        if name in _SUBMODULES:
            return getattr(importlib.import_module(f"{__name__}.{_SUBMODULES[name]}"), name)
        raise AttributeError(f"module 'captioning' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
