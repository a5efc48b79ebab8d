"""What comes with the package to caption with: files beside this one, told of in README.md."""

from pathlib import Path

SHIPPED = ("flickr8k-soft", "flickr8k-hard")  # the first is what captions if nobody says otherwise


def locate(model: str | Path) -> Path:
    """The file of a shipped model's name; anything else is a path already."""
    return Path(__file__).with_name(f"{model}.safetensors") if model in SHIPPED else Path(model)
