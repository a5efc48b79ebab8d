import pytest
import torch

from captioning.annotations import DropoutOfPictures, Neighbours
from captioning.errors import CaptioningError


def test_dropout_leaves_out_the_same_at_all_places_of_a_picture() -> None:
    torch.manual_seed(0)
    dropout = DropoutOfPictures(0.4)
    annotations = torch.rand(50, 9, 40) + 1
    left = dropout(annotations)
    out = left == 0
    assert torch.equal(out, out[:, :1].expand_as(out))
    assert not torch.equal(out[0], out[1])
    assert out.float().mean() == pytest.approx(0.4, abs=0.03)
    torch.testing.assert_close(left[~out], annotations[~out] / 0.6)
    assert torch.equal(dropout.eval()(annotations), annotations)


@pytest.mark.parametrize("kind", ["mean", "self_attention", "bidirectional_lstm"])
def test_every_annotation_knows_all_others_of_its_picture_and_none_of_another(kind) -> None:
    torch.manual_seed(0)
    neighbours = Neighbours(kind, 8)
    annotations = torch.randn(2, 5, 8, requires_grad=True)
    told = neighbours(annotations)
    for place in range(5):
        (gradient,) = torch.autograd.grad(told[0, place].square().sum(), annotations, retain_graph=True)
        assert (gradient[0].abs().sum(-1) > 0).all()
        assert not gradient[1].any()


def test_the_mean_tells_every_place_the_same() -> None:
    torch.manual_seed(0)
    annotations = torch.randn(2, 5, 8)
    told = Neighbours("mean", 8)(annotations) - annotations
    torch.testing.assert_close(told, told[:, :1].expand_as(told))


def test_widths_that_heads_cannot_part() -> None:
    with pytest.raises(CaptioningError, match="'self_attention' needs an encoder width that 8 divides"):
        Neighbours("self_attention", 12)
    Neighbours("mean", 12)
