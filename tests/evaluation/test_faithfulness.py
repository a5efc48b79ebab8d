"""Occlusion test of attention maps: stub models whose words depend on one known cell, and untrained captioners."""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from captioning.captioner import Captioner
from captioning.datasets.synthetic.scene import Scene, SceneObject, render
from captioning.evaluation import faithfulness
from captioning.evaluation import faithfulness_report as reporting
from captioning.evaluation.faithfulness import (
    FUNCTION_WORDS,
    CaptionWithAttention,
    OcclusionResult,
    gaussian_blur,
    occlude,
    occlusion_masks,
    rank_locations,
    run_occlusion_test,
)
from captioning.evaluation.feature_masking import attended_only_log_probs
from captioning.generation import GenerationConfig, Hypothesis, generate
from captioning.models import attention
from captioning.models.decoder_output import DecoderOutput
from captioning.preprocessing.image import ImageTransform, open_image
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError
from tests.conftest import make_captioner

GRID_SIDE, CELL = 4, 8
NUM_LOCATIONS = GRID_SIDE * GRID_SIDE
VOCABULARY = Vocabulary([*Vocabulary.SPECIAL_TOKENS, "a", "poppy", "and", "leaf"])
CAPTION = [4, 5, 6, 4, 7]  # a poppy and a leaf
ORDERS = ("most_attended", "other_image", "random", "least_attended", "attended_only")


class CellMeanEncoder(torch.nn.Module):
    """The feature of a location is the mean color of its cell."""

    grid_size = (GRID_SIDE, GRID_SIDE)
    transform = ImageTransform(GRID_SIDE * CELL, (0.0,) * 3, (1.0,) * 3)

    def __init__(self) -> None:
        super().__init__()
        self.num_encoded = 0

    def for_inference(self) -> "CellMeanEncoder":
        return self

    def forward(self, pixels: Tensor) -> Tensor:
        self.num_encoded += len(pixels)
        return F.avg_pool2d(pixels, CELL).flatten(2).mT


class OneCellDecoder(torch.nn.Module):
    """The probability of "poppy" depends only on the reddest cell, that of "leaf" only on the greenest.

    The attention maps have their maximum at this cell, or ``map_shift`` locations after it.
    """

    is_hard = False

    def __init__(self, map_shift: int = 0) -> None:
        super().__init__()
        self.map_shift = map_shift

    def forward(self, features: Tensor, token_ids: Tensor, lengths: Tensor, attention_fn=None) -> DecoderOutput:
        targets = token_ids[:, 0, 1:]  # (N, T)
        channels = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])[targets]  # a leaf is green
        colors = features.mT[torch.arange(len(token_ids))[:, None], channels]  # (N, T, L)
        evidence = 6 * colors.amax(-1) * torch.isin(targets, torch.tensor([5, 7]))  # (N, T)
        logits = F.one_hot(targets, len(VOCABULARY)) * evidence[..., None]
        weights = (10 * colors).softmax(-1).roll(self.map_shift, -1)
        if attention_fn is attention.attend_uniform:
            weights = torch.full_like(weights, 1 / NUM_LOCATIONS)
        token_mask = torch.ones(len(token_ids), 1, targets.shape[1], dtype=torch.bool)
        return DecoderOutput(logits.flatten(0, 1), targets.flatten(), weights[:, None], token_mask, None)


class FixedCaption(list[int]):
    """Takes the place of the generation settings of a stub: every image has this caption."""


@pytest.fixture(autouse=True)
def generate_fixed_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stubs have a fixed caption; other captioners generate theirs."""

    def generate_or_fixed(decoder, features: Tensor, config: GenerationConfig | FixedCaption, *args: Any):
        if not isinstance(config, FixedCaption):
            return generate(decoder, features, config, *args)
        hypothesis = Hypothesis(list(config), [0.0] * (len(config) + 1), torch.zeros(len(config), NUM_LOCATIONS))
        return [[hypothesis] for _ in features]

    def attended_only_or_zeros(decoder, features: Tensor, filler: Tensor, token_ids: list[int], *args: Any) -> Tensor:
        if not isinstance(decoder, OneCellDecoder):  # the stub has no steps
            return attended_only_log_probs(decoder, features, filler, token_ids, *args)
        return torch.zeros(len(token_ids) - 1, 2)

    monkeypatch.setattr(faithfulness, "generate", generate_or_fixed)
    monkeypatch.setattr(faithfulness, "attended_only_log_probs", attended_only_or_zeros)


def stub_captioner(map_shift: int = 0, caption: list[int] = CAPTION) -> SimpleNamespace:
    encoder, decoder = CellMeanEncoder(), OneCellDecoder(map_shift)
    return SimpleNamespace(
        encoder=encoder,
        decoder=decoder,
        single_model=lambda: (encoder, decoder),
        vocabulary=VOCABULARY,
        generation=FixedCaption(caption),
        attention_mode=None,
        generator=torch.Generator(),
    )


def two_cell_images(num_images: int = 20) -> list[Image.Image]:
    """Black images with one red cell and one green cell."""
    rng = random.Random(0)
    images = []
    for _ in range(num_images):
        images.append(Image.new("RGB", (GRID_SIDE * CELL, GRID_SIDE * CELL)))
        for location, color in zip(rng.sample(range(NUM_LOCATIONS), 2), ((255, 0, 0), (0, 255, 0)), strict=True):
            top, left = location // GRID_SIDE * CELL, location % GRID_SIDE * CELL
            images[-1].paste(color, (left, top, left + CELL, top + CELL))
    return images


def first_drops(result: OcclusionResult) -> dict[str, np.ndarray]:
    """Drop of the log-probability of each word after the first occlusion step, by order."""
    return {order: values[:, 0] - values[:, 1] for order, values in result.log_probs.items()}


def test_probability_drops_only_at_the_attended_cell_if_maps_are_faithful() -> None:
    """Each step occludes one cell, and the cell that the word depends on is the most attended one."""
    result = run_occlusion_test(stub_captioner(), two_cell_images(), num_steps=NUM_LOCATIONS)["soft"]
    assert result.words == ["poppy", "leaf"] * 20
    assert result.image_index.tolist() == [index for index in range(20) for _ in range(2)]
    drops = first_drops(result)
    assert (drops["most_attended"] > 0.7).all()
    assert drops["least_attended"] == pytest.approx(0, abs=1e-6)
    # The control orders sometimes start with the same cell; then the drop is the same, otherwise it is zero.
    for order in ("random", "other_image"):
        is_same_cell = drops[order] > 0.7
        assert drops[order][is_same_cell] == pytest.approx(drops["most_attended"][is_same_cell])
        assert drops[order][~is_same_cell] == pytest.approx(0, abs=1e-6)
        assert is_same_cell.mean() < 0.25
    metrics = reporting.summarize(result).metrics
    for order in ("other_image", "random", "least_attended"):
        assert metrics[f"drop_difference/{order}"].ci_low > 0.5
    assert metrics["insertion_minus_deletion"].ci_low > 0.3
    least_attended = result.log_probs["least_attended"]
    unchanged = np.repeat(least_attended[:, :1], NUM_LOCATIONS, axis=1)
    assert least_attended[:, :-1] == pytest.approx(unchanged, abs=1e-6), "constant until the last step"


def test_shifted_maps_have_no_advantage_over_random_orders() -> None:
    result = run_occlusion_test(stub_captioner(map_shift=5), two_cell_images(), num_steps=NUM_LOCATIONS)["soft"]
    assert first_drops(result)["most_attended"] == pytest.approx(0, abs=1e-6)
    metrics = reporting.summarize(result).metrics
    assert metrics["drop_difference/random"].mean <= 0
    assert metrics["insertion_minus_deletion"].ci_high < 0.2


def test_orders_of_the_uniform_control_are_random() -> None:
    """All weights are equal, so that the orders by own map and by the map of another image follow the tie order."""
    result = run_occlusion_test(stub_captioner(), two_cell_images(120), num_steps=NUM_LOCATIONS)["uniform"]
    drops = first_drops(result)
    assert np.array_equal(drops["most_attended"], drops["other_image"])
    assert (drops["most_attended"] > 0.7).mean() == pytest.approx(1 / NUM_LOCATIONS, abs=0.04)
    metrics = reporting.summarize(result).metrics
    for name in ("drop_difference/random", "drop_difference/least_attended", "insertion_minus_deletion"):
        assert metrics[name].ci_low < 0 < metrics[name].ci_high


def test_equal_occluded_copies_are_encoded_once() -> None:
    captioner = stub_captioner()
    run_occlusion_test(captioner, two_cell_images(2), num_steps=8)
    # Per image: 1 for generation, 2 with nothing and with everything occluded; for each of the 7 steps between them the
    # most and the least attended locations of two words and of the control, and the random ones; and the first step of
    # two words of the other image.
    assert captioner.encoder.num_encoded <= 2 * (1 + 2 + 7 * (2 * 2 + 2 + 1) + 2)


def test_result_depends_on_the_seed_only() -> None:
    first, repeated, other = (
        run_occlusion_test(stub_captioner(), two_cell_images(6), num_steps=NUM_LOCATIONS, seed=seed)["uniform"]
        for seed in (3, 3, 4)
    )
    for order in ("most_attended", "random", "least_attended"):
        values = first.log_probs[order]
        assert np.array_equal(values, repeated.log_probs[order])
        assert not np.array_equal(values, other.log_probs[order])


def test_occlude_changes_only_masked_cells() -> None:
    pixels = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(2, GRID_SIDE, GRID_SIDE, dtype=torch.bool)
    mask[0, 1, 2] = mask[1, 0, 0] = mask[1, 3, 1] = True
    copies = occlude(pixels, mask)
    blurred = gaussian_blur(pixels, CELL)
    for copy, cells in zip(copies, mask, strict=True):
        for row in range(GRID_SIDE):
            for column in range(GRID_SIDE):
                block = (slice(None), slice(CELL * row, CELL * (row + 1)), slice(CELL * column, CELL * (column + 1)))
                assert torch.equal(copy[block], blurred[block] if cells[row, column] else pixels[block])
    assert (blurred - pixels).abs().mean() > 0.2


def test_gaussian_blur() -> None:
    assert gaussian_blur(torch.full((3, 9, 9), 0.7), 3.0) == pytest.approx(0.7), "borders are not darker"
    point = torch.zeros(1, 101, 101)
    point[0, 50, 50] = 1
    blurred = gaussian_blur(point, 4.0)[0]
    assert blurred.sum() == pytest.approx(1, abs=1e-4)
    assert blurred[50, 54] / blurred[50, 50] == pytest.approx(np.exp(-0.5), abs=1e-4)
    assert blurred[53, 54] / blurred[50, 50] == pytest.approx(np.exp(-25 / 32), abs=1e-4)


def test_locations_of_equal_weight_follow_the_tie_order() -> None:
    weights = torch.tensor([[0.1, 0.4, 0.1, 0.4], [0.25, 0.25, 0.25, 0.25]])
    assert rank_locations(weights, torch.tensor([2, 3, 0, 1])).tolist() == [[3, 1, 2, 0], [2, 3, 0, 1]]


def test_occlusion_masks_are_cumulative() -> None:
    weights = torch.tensor([[0.0] * 5, [0.1, 0.5, 0.2, 0.05, 0.15]])
    caption = CaptionWithAttention([1, 4, 5, 2], ["a", "poppy"], weights)
    tie_order = torch.arange(5)
    other_maps = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]])
    masks = occlusion_masks(caption, other_maps, torch.tensor([3, 0, 4, 2, 1]), tie_order, num_steps=2)

    def occluded(order: str) -> list[list[int]]:
        return [step.nonzero().flatten().tolist() for step in masks[order][0]]

    assert occluded("most_attended") == [[], [1, 2, 4], [0, 1, 2, 3, 4]]
    assert occluded("least_attended") == [[], [0, 3, 4], [0, 1, 2, 3, 4]]
    assert occluded("random") == [[], [0, 3, 4], [0, 1, 2, 3, 4]]
    assert occluded("other_image") == [[], [0, 1, 4]]


SCENES = [
    Scene(
        (SceneObject("circle", "red", "small", x, y, 0.1), SceneObject("square", "blue", "large", y, x, 0.15)),
        (240, 240, 240),
    )
    for x, y in ((0.2, 0.8), (0.5, 0.2), (0.8, 0.5))
]


@pytest.mark.parametrize(
    ("attention_type", "activation", "attention_mode"),
    [
        ("soft", "softmax", None),
        ("soft", "entmax15", None),
        ("hard", "softmax", None),
        ("hard", "softmax", "expectation"),
    ],
)
def test_first_and_last_step_equal_the_original_and_the_blurred_image(
    attention_type: str, activation: str, attention_mode: str | None
) -> None:
    captioner = make_captioner(attention=attention_type, attention_activation=activation)
    captioner.attention_mode = attention_mode
    words = [f"word{index}" for index in range(len(captioner.vocabulary) - len(Vocabulary.SPECIAL_TOKENS))]
    captioner.vocabulary = Vocabulary([*Vocabulary.SPECIAL_TOKENS, *words])  # content words only
    images = [render(scene) for scene in SCENES]
    result = run_occlusion_test(captioner, images, SCENES)[attention_type]
    captions = captioner(images)
    original_probs = [prob for caption in captions for prob in caption.token_probs[: len(caption.words)]]
    assert len(result.words) == len(original_probs) > 3
    blurred_probs = []
    attention_fn = attention.make_attention_fn(attention_mode, captioner.generator)
    for image, caption in zip(images, captions, strict=True):
        pixels = captioner.encoder.transform(open_image(image))
        with torch.no_grad():
            features = captioner.encoder(gaussian_blur(pixels, 8)[None])
            token_ids = torch.tensor(captioner.vocabulary.encode(caption.words))[None, None]
            lengths = torch.tensor([[token_ids.shape[-1] - 1]])
            logits = captioner.decoder(features, token_ids, lengths, attention_fn).logits
        probs = logits.softmax(-1).gather(1, token_ids[0, 0, 1:, None])[:, 0]
        blurred_probs += probs[:-1].tolist()
    assert set(result.log_probs) == set(ORDERS)
    for order, values in result.log_probs.items():
        assert np.exp(values[:, 0]) == pytest.approx(original_probs, rel=1e-3), order
        if order not in ("other_image", "attended_only"):
            assert np.exp(values[:, -1]) == pytest.approx(blurred_probs, rel=1e-3), order
    curves = reporting.summarize(result).curves
    for order in ("most_attended", "random", "least_attended"):
        assert curves[f"insertion/{order}"].mean[0] == pytest.approx(np.mean(blurred_probs), rel=1e-3)
        assert curves[f"insertion/{order}"].mean[-1] == pytest.approx(np.mean(original_probs), rel=1e-3)
    assert np.array_equal(curves["insertion/most_attended"].mean, curves["deletion/least_attended"].mean[::-1])


def test_pointing_game_by_word_category() -> None:
    """The map of "red" has its maximum on the circle; that of "circle" on the green cell, which is elsewhere."""
    captioner = stub_captioner(caption=[4, 5, 7])
    captioner.vocabulary = Vocabulary([*Vocabulary.SPECIAL_TOKENS, "a", "red", "and", "circle"])
    images = two_cell_images()
    cells = [
        [np.argwhere(np.asarray(image)[::CELL, ::CELL, channel] == 255)[0] for channel in (0, 1)] for image in images
    ]
    scenes = [
        Scene(
            (SceneObject("circle", "red", "small", (column + 0.5) / GRID_SIDE, (row + 0.5) / GRID_SIDE, 0.1),),
            (0, 0, 0),
        )
        for (row, column), _ in cells
    ]
    is_adjacent = [float(abs(red - green).max() <= 1) for red, green in cells]
    results = run_occlusion_test(captioner, images, scenes)
    assert results["soft"].pointing_counts["color"].tolist() == [[1, 1]] * 20
    assert results["soft"].pointing_counts["shape"].tolist() == [[hit, 1] for hit in is_adjacent]
    report = reporting.summarize(results["soft"])
    assert tuple(report.metrics["pointing_game/color"]) == (1, 1, 1)
    assert report.metrics["pointing_game/shape"].mean == pytest.approx(np.mean(is_adjacent))
    assert "pointing_game/size" not in report.metrics, "the captions have no such word"
    control = results["uniform"].pointing_counts["color"]
    assert 0 < control[:, 0].mean() < 1, "random hits"
    assert "color words" in reporting.to_markdown({"stub": {"soft": report}})


def random_result(num_images: int, num_repeats: int) -> OcclusionResult:
    """Random log-probabilities of one word per image, which occurs ``num_repeats`` times."""
    values = np.random.default_rng(0).normal(size=(num_images, 9))
    log_probs = {order: np.repeat(values, num_repeats, axis=0) for order in ORDERS}
    words = ["dog"] * (num_images * num_repeats)
    return OcclusionResult(num_images, words, np.repeat(np.arange(num_images), num_repeats), log_probs, {})


def test_confidence_intervals_resample_images_and_not_words() -> None:
    """Repeated words of an image do not change the interval; more images make it narrower."""
    few, repeated, many = (
        reporting.summarize(random_result(*size)).metrics["log_prob_drop/most_attended"]
        for size in ((80, 1), (80, 20), (1280, 1))
    )
    assert tuple(repeated) == pytest.approx(tuple(few))
    assert few.ci_low < few.mean < few.ci_high
    assert many.ci_high - many.ci_low == pytest.approx((few.ci_high - few.ci_low) / 4, rel=0.2)


def test_mean_is_over_all_words() -> None:
    log_probs = dict.fromkeys(ORDERS, np.array([[0.0, -1.0], [0.0, -4.0], [0.0, -4.0]]))
    metrics = reporting.summarize(OcclusionResult(9, ["x"] * 3, np.array([2, 7, 7]), log_probs, {})).metrics
    drop = metrics["log_prob_drop/most_attended"]
    assert drop.mean == pytest.approx(3)
    assert (drop.ci_low, drop.ci_high) == pytest.approx((1, 4))
    assert metrics["word_prob"].mean == pytest.approx(1)
    assert metrics["deletion/most_attended"].mean == pytest.approx((1 + (np.exp(-1) + 2 * np.exp(-4)) / 3) / 2)


@pytest.fixture
def reports() -> dict[str, dict[str, reporting.FaithfulnessReport]]:
    results = run_occlusion_test(stub_captioner(), two_cell_images(4))
    return {"stub": {name: reporting.summarize(result) for name, result in results.items()}}


def test_table_plot_and_json(reports, tmp_path: Path) -> None:
    lines = reporting.to_markdown(reports).splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[2:4]] == ["stub: soft", "stub: uniform"]
    assert len({len(line) for line in lines}) == 1
    drop = reports["stub"]["soft"].metrics["log_prob_drop/most_attended"]
    (row,) = (line for line in lines if "1/8 occluded: most attended" in line)
    assert str(drop) in row
    assert not any("pointing" in line for line in lines), "photos have no scenes"
    path = tmp_path / "new" / "faithfulness.png"
    assert reporting.save_report(path, reports) == [path, path.with_suffix(".json")]
    with Image.open(path) as image:
        assert image.width > 800
    values = json.loads(path.with_suffix(".json").read_text())["stub"]["soft"]
    assert (values["num_images"], values["num_words"], values["num_steps"]) == (4, 8, 8)
    assert values["metrics"]["log_prob_drop/most_attended"]["mean"] == drop.mean
    assert len(values["curves"]["insertion/random"]["ci_low"]) == 9


def test_json_is_written_without_matplotlib(reports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.warns(UserWarning, match=r"pip install 'captioning\[plots\]'"):
        paths = reporting.save_report(tmp_path / "faithfulness.png", reports)
    assert paths == [tmp_path / "faithfulness.json"]
    assert paths[0].exists()
    assert not (tmp_path / "faithfulness.png").exists()


@pytest.mark.parametrize("name", ["file/faithfulness.png", "faithfulness.xyz"])
def test_report_that_cannot_be_written(reports, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(CaptioningError, match=r"faithfulness\.\w+: the report cannot be written"):
        reporting.save_report(tmp_path / name, reports)


def test_invalid_input(hard_captioner: Captioner) -> None:
    with pytest.raises(CaptioningError, match="at least 2 images"):
        run_occlusion_test(stub_captioner(), two_cell_images(1))
    with pytest.raises(CaptioningError, match=r"of 3 captions .* \(the first caption is 'a and'\).* train the model"):
        run_occlusion_test(stub_captioner(caption=[4, 6]), two_cell_images(3))
    hard_captioner.attention_mode = "sample"
    with pytest.raises(CaptioningError, match=r"attention_mode 'sample'.*use 'argmax' or 'expectation'"):
        run_occlusion_test(hard_captioner, two_cell_images(2))


def test_function_words() -> None:
    assert set("a the of in is are and with his their there 's n't".split()) <= FUNCTION_WORDS
    assert not FUNCTION_WORDS & set("man dog red two left running many large".split())
    assert all(word == word.lower() for word in FUNCTION_WORDS)
