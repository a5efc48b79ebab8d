import pytest
import torch

from captioning import attention
from captioning.attention import HardAttention, Location, SoftAttention
from captioning.errors import CaptioningError

PLACES = 5


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(pictures: int = 2, captions: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores (B, C, L) and annotations (B, L, D)."""
    generator = seeded(1)
    scores = 2 * torch.randn(pictures, captions, PLACES, generator=generator)
    return scores, torch.randn(pictures, PLACES, 4, generator=generator)


def test_argmax_sees_the_likeliest_place_and_nothing_else() -> None:
    scores, annotations = make()
    look = attention.argmax(scores, annotations)
    for picture in range(2):
        for caption in range(3):
            place = int(scores[picture, caption].argmax())
            assert look.places[picture, caption] == place
            assert torch.equal(look.context[picture, caption], annotations[picture, place])
            assert look.weights[picture, caption].tolist() == [float(i == place) for i in range(PLACES)]


def test_expectation_weighs_all_places() -> None:
    scores, annotations = make()
    look = attention.expect(scores, annotations)
    torch.testing.assert_close(look.weights, scores.softmax(-1))
    torch.testing.assert_close(look.context, torch.einsum("bcl,bld->bcd", scores.softmax(-1), annotations))
    assert (look.places == -1).all()


@pytest.mark.parametrize("choose", [attention.sample, attention.straight_through])
def test_places_are_drawn_as_often_as_their_chances_say(choose) -> None:
    scores, annotations = make(1, 1)
    look = choose(scores.expand(1, 20_000, -1), annotations, seeded())
    assert ((look.weights - 1).abs() < 1e-6).sum() == 20_000, "one place each time"
    often = look.weights.mean((0, 1))
    chances = scores.softmax(-1)[0, 0]
    deviation = (chances * (1 - chances) / 20_000).sqrt()
    assert ((often - chances).abs() < 4 * deviation).all()


@pytest.mark.parametrize("choose", [attention.sample, attention.straight_through])
def test_the_seed_decides(choose) -> None:
    scores, annotations = make(4, 50)
    first, again, other = (choose(scores, annotations, seeded(seed)).weights for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_straight_through_goes_back_through_a_softmax() -> None:
    """Forwards the place that noise and scores choose, backwards the softmax of both."""
    scores, annotations = make()
    gumbel = -torch.empty_like(scores).exponential_(generator=seeded()).log()
    by_hand, ours = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    look = attention.straight_through(ours, annotations, seeded())
    assert torch.equal(look.weights.argmax(-1), (scores + gumbel).argmax(-1))
    direction = torch.randn(look.context.shape, generator=seeded(2))
    (look.context * direction).sum().backward()
    ((by_hand + gumbel).softmax(-1) @ annotations * direction).sum().backward()
    torch.testing.assert_close(ours.grad, by_hand.grad)


def test_the_coin_decides_for_all_captions_of_a_picture() -> None:
    scores, annotations = make(3, 4)
    coins = torch.tensor([True, False, True])
    look = attention.expect_where(scores, annotations, coins, attention.argmax)
    soft, hard = attention.expect(scores, annotations), attention.argmax(scores, annotations)
    for picture, coin in enumerate(coins):
        for got, if_heads, if_tails in zip(look, soft, hard, strict=True):
            assert torch.equal(got[picture], (if_heads if coin else if_tails)[picture])


def test_the_coins_are_those_of_the_pictures_that_are_left() -> None:
    """Pictures whose captions have all ended are the last, and are no longer looked at."""
    scores, annotations = make(2, 4)
    look = attention.expect_where(scores, annotations, torch.tensor([False, True, False]), attention.argmax)
    assert torch.equal(look.places[0], scores[0].argmax(-1))
    assert (look.places[1] == -1).all()


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_half_precision_is_too_coarse_to_draw_from(precision: torch.dtype) -> None:
    hard = HardAttention(Location(7, PLACES), 1.0).to(precision)
    hidden, annotations = torch.randn(2, 3, 7, dtype=precision), torch.randn(2, PLACES, 4, dtype=precision)
    assert hard(hidden, annotations, annotations).scores.dtype == torch.float32


def test_temperature_flattens_the_chances() -> None:
    hidden, annotations = torch.randn(2, 3, 7), torch.randn(2, PLACES, 4)
    score = Location(7, PLACES)
    for temperature in (0.5, 1.0, 4.0):
        look = HardAttention(score, temperature)(hidden, annotations, annotations, attention.expect)
        torch.testing.assert_close(look.weights, (score(hidden, annotations) / temperature).softmax(-1))
    with pytest.raises(CaptioningError, match="temperature 0"):
        HardAttention(score, 0)


def test_hard_looks_at_the_likeliest_place_unless_told() -> None:
    hidden, annotations = torch.randn(2, 3, 7), torch.randn(2, PLACES, 4)
    hard = HardAttention(Location(7, PLACES), 1.0)
    by_itself, told = (hard(hidden, annotations, annotations, choose) for choose in (None, attention.argmax))
    assert torch.equal(by_itself.context, told.context)
    assert torch.equal(by_itself.places, told.places)


@pytest.mark.parametrize("attend", [SoftAttention(Location(7, PLACES)), HardAttention(Location(7, PLACES), 0.5)])
def test_the_control_looks_everywhere_alike(attend: SoftAttention | HardAttention) -> None:
    hidden, annotations = torch.randn(2, 3, 7), torch.randn(2, PLACES, 4)
    look = attend(hidden, annotations, annotations, attention.uniform)
    assert torch.equal(look.weights, torch.full((2, 3, PLACES), 1 / PLACES))
    torch.testing.assert_close(look.context, annotations.mean(1, keepdim=True).expand(-1, 3, -1))
    assert torch.equal(look.scores.softmax(-1), look.weights), "α, as a reading takes it from hard attention"


def test_soft_can_only_expect() -> None:
    hidden, annotations = torch.randn(2, 3, 7), torch.randn(2, PLACES, 4)
    soft = SoftAttention(Location(7, PLACES))
    assert torch.equal(
        soft(hidden, annotations, annotations).context, soft(hidden, annotations, annotations, attention.expect).context
    )
    with pytest.raises(CaptioningError, match="attention is soft"):
        soft(hidden, annotations, annotations, attention.argmax)


def test_a_look_must_exist_and_fit_the_model() -> None:
    assert attention.way_to_look(None, seeded()) is None
    for look, hard in ((None, False), ("expect", False), (None, True), ("argmax", True), ("sample", True)):
        attention.check_look(look, hard)
    with pytest.raises(CaptioningError, match="unknown look 'x'; choose expect, argmax, sample"):
        attention.check_look("x", hard=True)
    with pytest.raises(CaptioningError, match=r"look 'argmax' needs hard attention.*leave it out, or take 'expect'"):
        attention.check_look("argmax", hard=False)
