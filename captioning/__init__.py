"""Image captioning with visual attention: generates a caption and an attention map for each of its words."""

from typing import TYPE_CHECKING, Any

from captioning.utils.errors import CaptioningError

if TYPE_CHECKING:
    from captioning.captioner import Caption, Captioner

__version__ = "0.1.0"
__all__ = ["Caption", "Captioner", "CaptioningError", "__version__"]


def __getattr__(name: str) -> Any:
    # Importing torch takes two seconds, which "captioning --help" avoids.
    if name in ("Caption", "Captioner"):
        from captioning import captioner

        return getattr(captioner, name)
    raise AttributeError(f"module 'captioning' has no attribute '{name}'")
