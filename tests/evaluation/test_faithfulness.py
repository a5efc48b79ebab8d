"""Occlusion test of attention maps: stub models whose words depend on one known cell, and untrained captioners."""

import numpy as np
import pytest
import torch

from captioning.captioner import Captioner
from captioning.datasets.synthetic.scene import Scene, SceneObject, render
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
from captioning.models import attention
from captioning.preprocessing.image import open_image
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError
from tests.conftest import make_captioner
from tests.evaluation.occlusion_stubs import CELL, GRID_SIDE, NUM_LOCATIONS, ORDERS, stub_captioner, two_cell_images

pytestmark = pytest.mark.usefixtures("fixed_captions")


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
