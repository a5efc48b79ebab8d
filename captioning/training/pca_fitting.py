"""Fits the PCA projection of the encoder to training images, once per encoder and data."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from captioning.models.encoder import Encoder
from captioning.preprocessing.image import open_image
from captioning.utils.atomic_io import atomic_write

_MAX_IMAGES = 2000  # the explained variance of other images changes by less than 0.1 points with more
_BATCH_SIZE = 16


def ensure_pca_fitted(encoder: Encoder, images: Sequence[Path], cache_dir: Path, device: torch.device | str) -> None:
    """Fit ``encoder.pca`` to a random sample of the images, or load an earlier fit from ``cache_dir``.

    Does nothing for an encoder without a projection, or whose projection comes from ``init_from`` or a checkpoint.
    """
    if encoder.pca is None or encoder.pca.is_fitted:
        return
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    sample = [images[index] for index in order[:_MAX_IMAGES].tolist()]
    cache_dir.mkdir(parents=True, exist_ok=True)
    path = cache_dir / f"pca-{_fingerprint(encoder, sample)}.safetensors"
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            explained = encoder.pca.fit(_feature_batches(encoder.to(device), sample))
            print(f"PCA of the features: {encoder.feature_size} components explain {explained:.1%} of the variance")
            with atomic_write(path) as temporary:
                save_file(encoder.pca.state_dict(), temporary)
    encoder.pca.load_state_dict(load_file(path))


def _fingerprint(encoder: Encoder, images: Sequence[Path]) -> str:
    digest = hashlib.sha256(repr((encoder.config, encoder.transform)).encode())
    for tensor in encoder.backbone.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    for image in images:
        digest.update(hashlib.sha256(image.read_bytes()).digest())
    return digest.hexdigest()[:16]


@torch.inference_mode()
def _feature_batches(encoder: Encoder, images: Sequence[Path]) -> Iterator[Tensor]:
    extractor = encoder.without_pca().for_inference()
    device = next(encoder.parameters()).device
    for start in tqdm(range(0, len(images), _BATCH_SIZE), desc="fitting the PCA", unit="batch", leave=False):
        batch = [open_image(path, encoder.transform.image_size) for path in images[start : start + _BATCH_SIZE]]
        yield extractor(torch.stack([encoder.transform(image) for image in batch]).to(device))
