"""Projection of encoder features to their principal components.

At an output stride of 16 the features of 40,000 images take more than 50 GB; 512 of 2,560 components take a fifth.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from captioning.utils.errors import CaptioningError

_LOCATIONS_PER_IMAGE = 64  # of which the covariance is estimated


class PCAProjection(nn.Module):
    """Fixed projection (…, D) -> (…, num_components) to the principal components of the features.

    The components are divided by one common factor, so that their mean square is 1.

    Args:
        feature_size: D.
        num_components: number of components.
    """

    weight: Tensor  # (num_components, D); zero before the projection is fitted
    bias: Tensor  # (num_components,)

    def __init__(self, feature_size: int, num_components: int) -> None:
        super().__init__()
        if num_components > feature_size:
            raise CaptioningError(
                f"pca_components {num_components} is larger than the feature size {feature_size} of the backbone"
            )
        self.register_buffer("weight", torch.zeros(num_components, feature_size))
        self.register_buffer("bias", torch.zeros(num_components))

    @property
    def is_fitted(self) -> bool:
        return bool(self.weight.any())

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.weight, self.bias)

    def fit(self, feature_batches: Iterable[Tensor]) -> float:
        """Fit the projection to features.

        Args:
            feature_batches: features (B, L, D) of batches of images.

        Returns:
            Fraction of the variance that the components explain.
        """
        generator = torch.Generator().manual_seed(0)
        size = self.weight.shape[1]
        total, products, count = torch.zeros(size), torch.zeros(size, size), 0
        for features in feature_batches:
            kept = torch.randperm(features.shape[1], generator=generator)[:_LOCATIONS_PER_IMAGE]
            rows = features[:, kept].flatten(0, 1).float().cpu()  # (B · kept, D)
            total += rows.sum(0)
            products += rows.T @ rows
            count += len(rows)
        mean = (total / count).double()
        covariance = products.double() / count - mean[:, None] * mean
        variances, vectors = torch.linalg.eigh(covariance)  # ascending
        components = vectors[:, -len(self.weight) :].flip(1).T  # (num_components, D)
        # The sign of an eigenvector is arbitrary: the largest entry is made positive, for the same result everywhere.
        largest = components.gather(1, components.abs().argmax(1, keepdim=True))
        explained = variances[-len(self.weight) :].sum()
        components = components * largest.sign() / (explained / len(self.weight)).sqrt()
        self.weight.copy_(components)
        self.bias.copy_(-components @ mean)
        return float(explained / variances.sum())
