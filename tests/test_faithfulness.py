"""Honest maps: on models whose words come from one known cell each, on real ones, and by hand."""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from captioning import Captioner, attention
from captioning import faithfulness_report as reporting
from captioning.datasets.scenes import Scene, Thing, draw
from captioning.decoder import Reading
from captioning.errors import CaptioningError
from captioning.faithfulness import FUNCTION_WORDS, Measured, Said, blur, cover, coverings, measure, ranked
from captioning.images import Transform, open_image
from captioning.search import Found
from captioning.text import Vocabulary
from tests.conftest import make_captioner

SIDE, CELL = 4, 8
PLACES = SIDE * SIDE
VOCABULARY = Vocabulary([*Vocabulary.MARKS, "a", "poppy", "and", "leaf"])
CAPTION = [4, 5, 6, 4, 7]  # a poppy and a leaf


class CellMeans(torch.nn.Module):
    """An annotation is the mean colour of its cell, and of nothing else."""

    grid = (SIDE, SIDE)
    transform = Transform(SIDE * CELL, (0.0,) * 3, (1.0,) * 3)

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def for_inference(self) -> "CellMeans":
        return self

    def forward(self, pixels: Tensor) -> Tensor:
        self.seen += len(pixels)
        return F.avg_pool2d(pixels, CELL).flatten(2).mT


class OneCellEach(torch.nn.Module):
    """Says "poppy" by the reddest cell and "leaf" by the greenest, and by nothing else.

    Its maps say so too, unless they lie: then they are those of the cells ``off`` places further on.
    """

    hard = False

    def __init__(self, off: int = 0) -> None:
        super().__init__()
        self.off = off

    def forward(self, annotations: Tensor, words: Tensor, lengths: Tensor, choose=None) -> Reading:
        targets = words[:, 0, 1:]  # (N, T)
        channels = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])[targets]  # a leaf is green
        colours = annotations.mT[torch.arange(len(words))[:, None], channels]  # (N, T, L)
        seen = 6 * colours.amax(-1) * torch.isin(targets, torch.tensor([5, 7]))  # (N, T)
        logits = F.one_hot(targets, len(VOCABULARY)) * seen[..., None]
        weights = (10 * colours).softmax(-1).roll(self.off, -1)
        if choose is attention.uniform:
            weights = torch.full_like(weights, 1 / PLACES)
        return Reading(logits.flatten(0, 1), targets.flatten(), weights[:, None], None)


def stub(off: int = 0, caption: list[int] = CAPTION) -> SimpleNamespace:
    def search(decoder, annotations: Tensor, generator, choose) -> list[list[Found]]:
        return [[Found(caption, [0.0] * (len(caption) + 1), torch.zeros(len(caption), PLACES))] for _ in annotations]

    parts = {"encoder": CellMeans(), "decoder": OneCellEach(off), "vocabulary": VOCABULARY, "search": search}
    return SimpleNamespace(**parts, look=None, generator=torch.Generator())


def gardens(count: int = 20) -> list[Image.Image]:
    """Black, with one red cell and one green one."""
    chance = random.Random(0)
    pictures = []
    for _ in range(count):
        pictures.append(Image.new("RGB", (SIDE * CELL, SIDE * CELL)))
        for place, colour in zip(chance.sample(range(PLACES), 2), ((255, 0, 0), (0, 255, 0)), strict=True):
            top, left = place // SIDE * CELL, place % SIDE * CELL
            pictures[-1].paste(colour, (left, top, left + CELL, top + CELL))
    return pictures


def falls(measured: Measured) -> dict[str, np.ndarray]:
    return {order: values[:, 0] - values[:, 1] for order, values in measured.log_chances.items()}


def test_words_fall_where_honest_maps_say_and_nowhere_else() -> None:
    """Each step covers one cell: the one that the word comes from is the first of its map."""
    measured = measure(stub(), gardens(), steps=PLACES)["soft"]
    assert measured.words == ["poppy", "leaf"] * 20
    assert measured.of_picture.tolist() == [number for number in range(20) for _ in range(2)]
    fell = falls(measured)
    assert (fell["most"] > 0.7).all()
    assert fell["least"] == pytest.approx(0, abs=1e-6)
    # By chance the one cell is covered too, now and then; then it is all of the fall.
    for order in ("random", "other"):
        at_once = fell[order] > 0.7
        assert fell[order][at_once] == pytest.approx(fell["most"][at_once])
        assert fell[order][~at_once] == pytest.approx(0, abs=1e-6)
        assert at_once.mean() < 0.25
    figures = reporting.report(measured).figures
    for order in ("other", "random", "least"):
        assert figures[f"more_than/{order}"].low > 0.5
    assert figures["insertion_less_deletion"].low > 0.3
    least = measured.log_chances["least"]
    assert least[:, :-1] == pytest.approx(np.repeat(least[:, :1], PLACES, axis=1), abs=1e-6), "until the last step"


def test_maps_that_lie_gain_nothing() -> None:
    measured = measure(stub(off=5), gardens(), steps=PLACES)["soft"]
    assert falls(measured)["most"] == pytest.approx(0, abs=1e-6)
    figures = reporting.report(measured).figures
    assert figures["more_than/random"].value <= 0
    assert figures["insertion_less_deletion"].high < 0.2


def test_the_control_has_no_map_to_go_by() -> None:
    """Its places are all ties: most attended, another picture's, and random are random alike."""
    measured = measure(stub(), gardens(120), steps=PLACES)["uniform"]
    fell = falls(measured)
    assert np.array_equal(fell["most"], fell["other"])
    assert (fell["most"] > 0.7).mean() == pytest.approx(1 / PLACES, abs=0.04)
    figures = reporting.report(measured).figures
    for name in ("more_than/random", "more_than/least", "insertion_less_deletion"):
        assert figures[name].low < 0 < figures[name].high


def test_no_copy_of_a_picture_is_seen_twice() -> None:
    captioner = stub()
    measure(captioner, gardens(2), steps=8)
    # Of each picture the caption's, one without and one with all covered; for 7 steps between them the most and the
    # least attended of two words and of the control, and random ones; and what two words of the other picture choose.
    assert captioner.encoder.seen <= 2 * (1 + 2 + 7 * (2 * 2 + 2 + 1) + 2)


def test_the_seed_decides() -> None:
    first, again, other = (measure(stub(), gardens(6), steps=PLACES, seed=seed)["uniform"] for seed in (3, 3, 4))
    for order in ("most", "random", "least"):
        values = first.log_chances[order]
        assert np.array_equal(values, again.log_chances[order])
        assert not np.array_equal(values, other.log_chances[order])


def test_covering_changes_the_chosen_cells_and_no_others() -> None:
    pixels = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0))
    covered = torch.zeros(2, SIDE, SIDE, dtype=torch.bool)
    covered[0, 1, 2] = covered[1, 0, 0] = covered[1, 3, 1] = True
    copies = cover(pixels, covered)
    blurred = blur(pixels, CELL)
    for copy, cells in zip(copies, covered, strict=True):
        for row in range(SIDE):
            for column in range(SIDE):
                block = (slice(None), slice(CELL * row, CELL * (row + 1)), slice(CELL * column, CELL * (column + 1)))
                assert torch.equal(copy[block], blurred[block] if cells[row, column] else pixels[block])
    assert (blurred - pixels).abs().mean() > 0.2


def test_blur_is_a_gaussian() -> None:
    assert blur(torch.full((3, 9, 9), 0.7), 3.0) == pytest.approx(0.7), "edges are no darker"
    point = torch.zeros(1, 101, 101)
    point[0, 50, 50] = 1
    seen = blur(point, 4.0)[0]
    assert seen.sum() == pytest.approx(1, abs=1e-4)
    assert seen[50, 54] / seen[50, 50] == pytest.approx(np.exp(-0.5), abs=1e-4)
    assert seen[53, 54] / seen[50, 50] == pytest.approx(np.exp(-25 / 32), abs=1e-4)


def test_equal_places_come_in_the_order_given() -> None:
    weights = torch.tensor([[0.1, 0.4, 0.1, 0.4], [0.25, 0.25, 0.25, 0.25]])
    assert ranked(weights, torch.tensor([2, 3, 0, 1])).tolist() == [[3, 1, 2, 0], [2, 3, 0, 1]]


def test_places_are_covered_one_step_after_the_other() -> None:
    caption = Said([1, 4, 5, 2], ["a", "poppy"], torch.tensor([[0.0] * 5, [0.1, 0.5, 0.2, 0.05, 0.15]]))
    order = torch.arange(5)
    other = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]])
    covered = coverings(caption, other, torch.tensor([3, 0, 4, 2, 1]), order, steps=2)

    def cells(name: str) -> list[list[int]]:
        return [step.nonzero().flatten().tolist() for step in covered[name][0]]

    assert cells("most") == [[], [1, 2, 4], [0, 1, 2, 3, 4]]
    assert cells("least") == [[], [0, 3, 4], [0, 1, 2, 3, 4]]
    assert cells("random") == [[], [0, 3, 4], [0, 1, 2, 3, 4]]
    assert cells("other") == [[], [0, 1, 4]]


SCENES = [
    Scene((Thing("circle", "red", "small", x, y, 0.1), Thing("square", "blue", "large", y, x, 0.15)), (240, 240, 240))
    for x, y in ((0.2, 0.8), (0.5, 0.2), (0.8, 0.5))
]


@pytest.mark.parametrize("settings", [{}, {"attention": "hard"}, {"attention": "hard", "look": "expect"}])
def test_nothing_covered_is_what_was_said_and_all_covered_is_a_blurred_picture(settings: dict) -> None:
    look = settings.pop("look", None)
    captioner = make_captioner(**settings)
    captioner.look = look
    words = [f"thing{number}" for number in range(len(captioner.vocabulary) - len(Vocabulary.MARKS))]
    captioner.vocabulary = Vocabulary([*Vocabulary.MARKS, *words])  # it says all kinds of things, and all have content
    pictures = [draw(scene) for scene in SCENES]
    measured = measure(captioner, pictures, SCENES)[settings.get("attention", "soft")]
    captions = captioner(pictures)
    said = [chance for caption in captions for chance in caption.probabilities[: len(caption.words)]]
    assert len(measured.words) == len(said) > 3
    blurred = []
    choose = attention.way_to_look(look, captioner.generator)
    for picture, caption in zip(pictures, captions, strict=True):
        pixels = captioner.encoder.transform(open_image(picture))
        with torch.no_grad():
            annotations = captioner.encoder(blur(pixels, 8)[None])
            ids = torch.tensor(captioner.vocabulary.encode(caption.words))[None, None]
            logits = captioner.decoder(annotations, ids, torch.tensor([[ids.shape[-1] - 1]]), choose).logits
        chances = logits.softmax(-1).gather(1, ids[0, 0, 1:, None])[:, 0]
        blurred += chances[:-1].tolist()
    for order, values in measured.log_chances.items():
        assert np.exp(values[:, 0]) == pytest.approx(said, rel=1e-3), order
        if order != "other":
            assert np.exp(values[:, -1]) == pytest.approx(blurred, rel=1e-3), order
    curves = reporting.report(measured).curves
    for order in ("most", "random", "least"):
        assert curves[f"insertion/{order}"].value[0] == pytest.approx(np.mean(blurred), rel=1e-3)
        assert curves[f"insertion/{order}"].value[-1] == pytest.approx(np.mean(said), rel=1e-3)
    assert np.array_equal(curves["insertion/most"].value, curves["deletion/least"].value[::-1])


def test_maps_point_at_what_is_drawn_by_kind_of_word() -> None:
    """ "red" is said by the red cell, where the circle is; "circle" by the green one, where it is not."""
    captioner = stub(caption=[4, 5, 7])
    captioner.vocabulary = Vocabulary([*Vocabulary.MARKS, "a", "red", "and", "circle"])
    pictures = gardens()
    cells = [
        [np.argwhere(np.asarray(picture)[::CELL, ::CELL, channel] == 255)[0] for channel in (0, 1)]
        for picture in pictures
    ]
    scenes = [
        Scene((Thing("circle", "red", "small", (column + 0.5) / SIDE, (row + 0.5) / SIDE, 0.1),), (0, 0, 0))
        for (row, column), _ in cells
    ]
    near = [float(abs(red - green).max() <= 1) for red, green in cells]
    measured = measure(captioner, pictures, scenes)
    assert measured["soft"].pointing["colour"].tolist() == [[1, 1]] * 20
    assert measured["soft"].pointing["shape"].tolist() == [[hit, 1] for hit in near]
    figures = reporting.report(measured["soft"]).figures
    assert tuple(figures["pointing/colour"]) == (1, 1, 1)
    assert figures["pointing/shape"].value == pytest.approx(np.mean(near))
    assert "pointing/size" not in figures, "no such word was said"
    control = measured["uniform"].pointing["colour"]
    assert 0 < control[:, 0].mean() < 1, "by chance"
    assert "colour words" in reporting.table({"garden": {"soft": reporting.report(measured["soft"])}})


def made_up(pictures: int, times: int) -> Measured:
    """Words that fall by chance, each of them ``times`` times in its picture."""
    chances = np.random.default_rng(0).normal(size=(pictures, 9))
    log_chances = {order: np.repeat(chances, times, axis=0) for order in ("most", "other", "random", "least")}
    words = ["dog"] * (pictures * times)
    return Measured(pictures, words, np.repeat(np.arange(pictures), times), log_chances, {})


def test_bounds_are_over_pictures_not_words() -> None:
    """More words of the same kind in each picture make nothing surer; more pictures do."""
    few, repeated, many = (
        reporting.report(made_up(*size)).figures["fall/most"] for size in ((80, 1), (80, 20), (1280, 1))
    )
    assert tuple(repeated) == pytest.approx(tuple(few))
    assert few.low < few.value < few.high
    assert many.high - many.low == pytest.approx((few.high - few.low) / 4, rel=0.2)


def test_a_mean_is_over_all_words() -> None:
    log_chances = np.array([[0.0, -1.0], [0.0, -4.0], [0.0, -4.0]])
    orders = dict.fromkeys(("most", "other", "random", "least"), log_chances)
    figures = reporting.report(Measured(9, ["x"] * 3, np.array([2, 7, 7]), orders, {})).figures
    assert figures["fall/most"].value == pytest.approx(3)
    assert (figures["fall/most"].low, figures["fall/most"].high) == pytest.approx((1, 4))
    assert figures["chance"].value == pytest.approx(1)
    assert figures["deletion/most"].value == pytest.approx((1 + (np.exp(-1) + 2 * np.exp(-4)) / 3) / 2)


@pytest.fixture
def reports() -> dict[str, dict[str, reporting.Report]]:
    return {"garden": {look: reporting.report(one) for look, one in measure(stub(), gardens(4)).items()}}


def test_table_plot_and_json(reports, tmp_path: Path) -> None:
    lines = reporting.table(reports).splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[2:4]] == ["garden: soft", "garden: uniform"]
    assert len({len(line) for line in lines}) == 1
    (fall,) = (line for line in lines if "1/8 covered: the most attended" in line)
    assert str(reports["garden"]["soft"].figures["fall/most"]) in fall
    assert not any("point" in line for line in lines), "nothing is known of what is on photos"
    path = tmp_path / "new" / "maps.png"
    assert reporting.write(path, reports) == [path, path.with_suffix(".json")]
    with Image.open(path) as image:
        assert image.width > 800
    told = json.loads(path.with_suffix(".json").read_text())["garden"]["soft"]
    assert (told["pictures"], told["words"], told["steps"]) == (4, 8, 8)
    assert told["figures"]["fall/most"]["value"] == reports["garden"]["soft"].figures["fall/most"].value
    assert len(told["curves"]["insertion/random"]["low"]) == 9


def test_without_matplotlib_there_are_figures_all_the_same(reports, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert reporting.write(tmp_path / "maps.png", reports) == [tmp_path / "maps.json"]
    assert "pip install 'captioning[plots]'" in capsys.readouterr().err
    assert not (tmp_path / "maps.png").exists()


@pytest.mark.parametrize("name", ["taken/maps.png", "maps.xyz"])
def test_a_plot_that_cannot_be_written(reports, tmp_path: Path, name: str) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(CaptioningError, match=r"maps\.\w+: the plot of the maps cannot be written"):
        reporting.write(tmp_path / name, reports)


def test_what_cannot_be_measured(hard_captioner: Captioner) -> None:
    with pytest.raises(CaptioningError, match="at least 2 pictures"):
        measure(stub(), gardens(1))
    with pytest.raises(CaptioningError, match=r"of 3 captions .* \(the first is 'a and'\).* nothing to measure"):
        measure(stub(caption=[4, 6]), gardens(3))
    hard_captioner.look = "sample"
    with pytest.raises(CaptioningError, match=r"look 'sample'.*take 'argmax' or 'expect'"):
        measure(hard_captioner, gardens(2))


def test_function_words() -> None:
    assert set("a the of in is are and with his their there 's n't".split()) <= FUNCTION_WORDS
    assert not FUNCTION_WORDS & set("man dog red two left running many large".split())
    assert all(word == word.lower() for word in FUNCTION_WORDS)
