"""Pretrained model files. README.md is their model card. This module does not import torch."""

from pathlib import Path

from captioning.utils.errors import MissingFileError

PRETRAINED = ("photos-soft", "photos-hard", "flickr8k-soft", "flickr8k-hard")
DEFAULT_MODEL = PRETRAINED[0]


def list_pretrained() -> list[str]:
    """Return the names of the pretrained models; the first is the default."""
    return list(PRETRAINED)


def resolve_model_path(source: str | Path) -> Path:
    """Return the file of a pretrained model, or the given path."""
    return Path(__file__).with_name(f"{source}.safetensors") if source in PRETRAINED else Path(source)


def check_model_exists(source: str | Path) -> Path:
    """Return the file of a model. Raises MissingFileError if it does not exist."""
    path = resolve_model_path(source)
    if not path.is_file():
        raise MissingFileError(
            f"{path}: model file not found; expected a model file of 'captioning fit' or a pretrained model: "
            + ", ".join(PRETRAINED)
        )
    return path
