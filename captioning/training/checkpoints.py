"""Checkpoints: read with care, and written with a model file beside each, so that every run leaves what captions."""

from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO
from lightning_fabric.utilities.types import _PATH

from captioning.captioner import write_model
from captioning.errors import CaptioningError


class CheckpointWithModel(TorchCheckpointIO):
    """Keeps ``x.safetensors`` in step with ``x.ckpt``: written, replaced and removed together."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None) -> None:
        super().save_checkpoint(checkpoint, path, storage_options)
        write_model(model_path(path), checkpoint["captioner"], checkpoint["state_dict"])

    def remove_checkpoint(self, path: _PATH) -> None:
        super().remove_checkpoint(path)
        model_path(path).unlink(missing_ok=True)


def read_checkpoint(path: _PATH) -> dict[str, Any]:
    """What 'captioning fit' kept; no code in it is run."""
    if not Path(path).is_file():
        raise CaptioningError(f"{path}: no such checkpoint; 'captioning fit' leaves them in its run's folder")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        return {name: checkpoint[name] for name in ("hyper_parameters", "captioner", "state_dict")}
    except Exception:  # whatever torch makes of a file that is none of its own
        raise CaptioningError(f"{path}: not a checkpoint of 'captioning fit' (those end in .ckpt)") from None


def model_path(checkpoint: _PATH) -> Path:
    """The model file of a checkpoint."""
    return Path(checkpoint).with_suffix(".safetensors")
