"""A model file beside every checkpoint, so that whatever ends a run leaves something that captions."""

from pathlib import Path
from typing import Any

from lightning_fabric.plugins import TorchCheckpointIO
from lightning_fabric.utilities.types import _PATH

from captioning.captioner import write_model


class CheckpointWithModel(TorchCheckpointIO):
    """Keeps ``x.safetensors`` in step with ``x.ckpt``: written, replaced and removed together."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None) -> None:
        super().save_checkpoint(checkpoint, path, storage_options)
        write_model(model_path(path), checkpoint["captioner"], checkpoint["state_dict"])

    def remove_checkpoint(self, path: _PATH) -> None:
        super().remove_checkpoint(path)
        model_path(path).unlink(missing_ok=True)


def model_path(checkpoint: _PATH) -> Path:
    """The model file of a checkpoint."""
    return Path(checkpoint).with_suffix(".safetensors")
