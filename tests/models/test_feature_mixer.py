import pytest
import torch

from captioning.models.feature_mixer import ByteDropout, FeatureMixer, SpatialDropout, drop_locations
from captioning.utils.errors import CaptioningError


def test_spatial_dropout_drops_the_same_channels_at_all_locations_of_an_image() -> None:
    torch.manual_seed(0)
    dropout = SpatialDropout(0.4)
    features = torch.rand(50, 9, 40) + 1
    output = dropout(features)
    dropped = output == 0
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert not torch.equal(dropped[0], dropped[1])
    assert dropped.float().mean() == pytest.approx(0.4, abs=0.03)
    torch.testing.assert_close(output[~dropped], features[~dropped] / 0.6)
    assert torch.equal(dropout.eval()(features), features)


def test_drop_locations_keeps_at_least_one_location() -> None:
    features = torch.randn(3, 4, 2)
    assert drop_locations(features, 0.01).shape == (3, 1, 2)
    assert drop_locations(features, 1.0) is features


@pytest.mark.parametrize("mode", ["mean", "self_attention", "bilstm"])
def test_mixed_features_depend_on_all_locations_of_their_image_only(mode) -> None:
    torch.manual_seed(0)
    mixer = FeatureMixer(mode, 8)
    features = torch.randn(2, 5, 8, requires_grad=True)
    mixed = mixer(features)
    for location in range(5):
        (gradient,) = torch.autograd.grad(mixed[0, location].square().sum(), features, retain_graph=True)
        assert (gradient[0].abs().sum(-1) > 0).all()
        assert not gradient[1].any()


def test_mean_adds_the_same_vector_to_every_location() -> None:
    torch.manual_seed(0)
    features = torch.randn(2, 5, 8)
    added = FeatureMixer("mean", 8)(features) - features
    torch.testing.assert_close(added, added[:, :1].expand_as(added))


def test_feature_size_must_be_divisible_by_the_heads() -> None:
    with pytest.raises(CaptioningError, match="'self_attention' requires a feature size divisible by 8, not 12"):
        FeatureMixer("self_attention", 12)
    FeatureMixer("mean", 12)


@pytest.mark.parametrize("prob", [0.0, 0.2, 0.5, 1.0])
def test_byte_dropout(prob: float) -> None:
    """The fraction of zeros, the scale of the rest and the gradient are those of dropout."""
    dropout = ByteDropout(prob)
    features = torch.ones(7, 111, 113, requires_grad=True)
    output = dropout(features)
    assert float((output == 0).float().mean()) == pytest.approx(prob, abs=0.005)
    rounded = round(prob * 256) / 256
    if prob < 1:
        torch.testing.assert_close(output[output != 0].unique(), torch.tensor([1 / (1 - rounded)]))
        for bit in range(8):  # the elements of a 64-bit word are dropped equally often
            assert float((output.flatten()[bit::8] == 0).float().mean()) == pytest.approx(prob, abs=0.015)
    output.sum().backward()
    torch.testing.assert_close(features.grad, output)
    assert dropout.eval()(features) is features
