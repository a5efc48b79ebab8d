"""A picture goes in; a sentence comes out, and for every word a map of where the model looked."""

from typing import TYPE_CHECKING, Any

from captioning.errors import CaptioningError

if TYPE_CHECKING:
    from captioning.captioner import Caption, Captioner

__version__ = "0.1.0"
__all__ = ["Caption", "Captioner", "CaptioningError", "__version__"]


def __getattr__(name: str) -> Any:
    # Torch takes two seconds to import; "captioning --help" should not wait for it.
    if name in ("Caption", "Captioner"):
        from captioning import captioner

        return getattr(captioner, name)
    raise AttributeError(f"module 'captioning' has no attribute '{name}'")
