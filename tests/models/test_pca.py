"""PCA projection of encoder features."""

from pathlib import Path

import torch

from captioning.models.encoder import Encoder
from captioning.models.pca import PCAProjection


def test_components_of_a_known_distribution() -> None:
    """Features with independent channels: the components are the channels of largest variance."""
    scales = torch.tensor([0.1, 3.0, 0.2, 2.0])
    features = torch.randn(50, 64, 4, generator=torch.Generator().manual_seed(0)) * scales + 5
    pca = PCAProjection(4, 2)
    assert not pca.is_fitted
    explained = pca.fit(features.split(10))
    assert pca.is_fitted
    torch.testing.assert_close(explained, float(13 / 13.05), rtol=1e-2, atol=0)
    projected = pca(features).flatten(0, 1)
    torch.testing.assert_close(projected.square().mean(), torch.tensor(1.0), rtol=2e-2, atol=0)
    torch.testing.assert_close(projected.mean(0), torch.zeros(2), rtol=0, atol=0.05)
    correlation = torch.corrcoef(torch.cat([projected, features.flatten(0, 1)], dim=1).T)[:2, 2:]
    torch.testing.assert_close(correlation[:, [1, 3]], torch.eye(2), rtol=0, atol=0.05)


def test_full_projection_keeps_distances() -> None:
    features = torch.randn(20, 32, 6, generator=torch.Generator().manual_seed(1))
    pca = PCAProjection(6, 6)
    explained = pca.fit([features])
    torch.testing.assert_close(explained, 1.0)
    rows, projected = features[0], pca(features)[0]
    ratio = torch.pdist(projected) / torch.pdist(rows)
    torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio), rtol=1e-3, atol=0)


def test_encoder_with_a_projection(tmp_path: Path) -> None:
    encoder = Encoder("tiny", image_size=32, pca_components=5)
    pixels = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert encoder.pca is not None
    encoder.pca.fit([encoder.without_pca()(pixels)])
    assert encoder.feature_size == 5
    assert encoder(pixels).shape == (4, 16, 5)
    torch.testing.assert_close(encoder(pixels), encoder.pca(encoder.without_pca()(pixels)))
    torch.testing.assert_close(encoder.for_inference()(pixels), encoder(pixels), rtol=1e-4, atol=1e-4)
    copy = Encoder("tiny", image_size=32, pca_components=5)
    copy.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(copy(pixels), encoder(pixels))
