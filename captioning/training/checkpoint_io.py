"""Checkpoint files: a model file for captioning is written next to each checkpoint."""

from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO
from lightning_fabric.utilities.types import _PATH

from captioning.models.checkpoint import write_model_file
from captioning.utils.errors import CaptioningError


class ModelFileCheckpointIO(TorchCheckpointIO):
    """Keeps ``x.safetensors`` in sync with ``x.ckpt``: both are written, replaced and removed together."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None) -> None:
        super().save_checkpoint(checkpoint, path, storage_options)
        write_model_file(model_file_path(path), checkpoint["model_header"], checkpoint["state_dict"])

    def remove_checkpoint(self, path: _PATH) -> None:
        super().remove_checkpoint(path)
        model_file_path(path).unlink(missing_ok=True)


def load_checkpoint(path: _PATH) -> dict[str, Any]:
    """Load a checkpoint of ``captioning fit``; no code in it is executed."""
    if not Path(path).is_file():
        raise CaptioningError(f"{path}: checkpoint not found; 'captioning fit' writes them to its run directory")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        return {name: checkpoint[name] for name in ("hyper_parameters", "model_header", "state_dict")}
    except Exception:  # torch raises many types for files that it did not write
        raise CaptioningError(f"{path}: not a checkpoint of 'captioning fit' (their suffix is .ckpt)") from None


def model_file_path(checkpoint: _PATH) -> Path:
    """The model file of a checkpoint."""
    return Path(checkpoint).with_suffix(".safetensors")
