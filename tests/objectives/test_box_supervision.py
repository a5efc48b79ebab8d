import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from captioning.datasets.batch import Batch, pad_captions
from captioning.datasets.boxes import grid_coverage
from captioning.datasets.record import LabeledBox, Record
from captioning.datasets.view import View
from captioning.models.attention import attend_argmax
from captioning.models.decoder import Decoder, DecoderOutput
from captioning.objectives import BoxSupervision
from captioning.objectives.box_supervision import TokenCategories
from captioning.preprocessing.image import Box, ImageTransform
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError

WORDS = ["a", "man", "eats", "hot", "dog", "circles", "cat"]
VOCABULARY = Vocabulary([*Vocabulary.SPECIAL_TOKENS, *WORDS])
GRID = (4, 4)
DOG, LEFT_HALF = Box(0.5, 0.25, 0.75, 1), Box(0, 0, 0.5, 1)


def make_model(resize_mode: str = "stretch", **settings: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"embedding_size": 6, "hidden_size": 8, "attention_size": 4, "dropout": 0.0}
    decoder = Decoder(len(VOCABULARY), 5, 16, **sizes, **settings)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    transform = ImageTransform(64, (0.5,) * 3, (0.5,) * 3, resize_mode=resize_mode)
    encoder = SimpleNamespace(transform=transform, grid_size=GRID)
    return SimpleNamespace(encoder=encoder, decoder=decoder, vocabulary=VOCABULARY)


def make_term(model: Any) -> BoxSupervision:
    term = BoxSupervision()
    term.setup(model)
    return term


def make_batch(*images: tuple[list[str], dict[str, Box] | None], paths: tuple[str, ...] = ()) -> Batch:
    """Images with captions and boxes."""
    ids = [[VOCABULARY.encode(caption.split()) for caption in captions] for captions, _ in images]
    token_ids, lengths = pad_captions(ids)
    features = torch.randn(len(images), 16, 5, generator=torch.Generator().manual_seed(1))
    records = [
        Record(
            Path(path),
            tuple(captions),
            "train",
            {},
            None if boxes is None else tuple(map(LabeledBox._make, boxes.items())),
        )
        for (captions, boxes), path in zip(images, paths or ("",) * len(images), strict=True)
    ]
    return Batch(None, features, 0, token_ids, lengths, records, [View()] * len(records))


def decode(model: Any, batch: Batch, num_samples: int = 1) -> DecoderOutput:
    token_ids, lengths = (ids.repeat_interleave(num_samples, dim=1) for ids in (batch.token_ids, batch.lengths))
    attention_fn = attend_argmax if model.decoder.is_hard else None
    return model.decoder(batch.features, token_ids, lengths, attention_fn)


def mask(*boxes: Box) -> Tensor:
    return torch.from_numpy(grid_coverage(boxes, GRID).copy()).flatten()


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_against_the_formula(attention: str) -> None:
    """Images with boxes, without objects and without annotation in one batch."""
    model = make_model(attention=attention)
    batch = make_batch(
        (["a man eats a hot dog", "a dog"], {"person": LEFT_HALF, "dog": DOG}),
        (["a dog", "a cat eats a dog"], None),
        (["circles a cat", "man"], {"red circle": DOG, "blue circle": LEFT_HALF}),
        (["a dog"], {}),
    )
    output = decode(model, batch)
    weights = output.attention_weights
    mass = [
        (weights[0, 0, 1] * mask(LEFT_HALF)).sum(),  # man; "dog" of "hot dog" names no box
        (weights[0, 1, 1] * mask(DOG)).sum(),
        (weights[2, 0, 0] * mask(DOG, LEFT_HALF)).sum(),  # the union of both circles
    ]
    expected = -sum(value.log() for value in mass) / 7
    torch.testing.assert_close(make_term(model)(output, batch.features, batch), expected)


def test_samples_do_not_change_the_scale() -> None:
    model = make_model(attention="hard")
    batch = make_batch((["a man", "a dog eats"], {"person": LEFT_HALF, "dog": DOG}), (["cat"], None))
    term = make_term(model)
    single, repeated = (term(decode(model, batch, num_samples), batch.features, batch) for num_samples in (1, 3))
    torch.testing.assert_close(repeated, single)
    assert single > 0


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_gradient_moves_attention_into_the_box(attention: str) -> None:
    model = make_model(attention=attention)
    batch = make_batch((["a dog"], {"dog": DOG}))
    term = make_term(model)
    optimizer = torch.optim.SGD(model.decoder.parameters(), lr=0.1)
    masses = []
    for _ in range(5):
        output = decode(model, batch)
        masses.append((output.attention_weights[0, 0, 1].detach() * mask(DOG)).sum().item())
        optimizer.zero_grad()
        term(output, batch.features, batch).backward()
        optimizer.step()
    assert masses == sorted(masses)
    assert masses[-1] > masses[0] + 0.05


def test_zero_without_boxes() -> None:
    model = make_model()
    batch = make_batch((["a dog"], None), (["a man"], {"car": DOG}), (["a cat"], {}))
    loss = make_term(model)(decode(model, batch), batch.features, batch)
    assert loss.item() == 0
    assert not loss.requires_grad


def test_tiny_box_requires_one_cell_only() -> None:
    model = make_model()
    batch = make_batch((["a dog"], {"dog": Box(0.3, 0.3, 0.31, 0.31)}))
    output = decode(model, batch)
    loss = make_term(model)(output, batch.features, batch)
    assert loss.item() == pytest.approx(-math.log(output.attention_weights[0, 0, 1, 5].detach().item()), rel=1e-5)


def test_no_attention_in_the_box_is_finite() -> None:
    model = make_model()
    batch = make_batch((["a dog"], {"dog": DOG}))
    output = decode(model, batch)
    output = output._replace(attention_weights=output.attention_weights.detach() * (mask(DOG) == 0))
    assert make_term(model)(output, batch.features, batch).item() == pytest.approx(-math.log(1e-6), rel=1e-4)


@pytest.mark.parametrize(
    ("view", "columns"),
    [
        (View(), [2]),
        (View(flipped=True), [1]),
        (View(crop_box=Box(0.5, 0, 1, 1)), [0, 1]),
        (View(flipped=True, crop_box=Box(0.5, 0, 1, 1)), [2, 3]),
        (View(crop_box=Box(0.7, 0, 1, 1)), []),  # contains a fifth of the box
    ],
)
def test_boxes_of_a_view(view: View, columns: list[int]) -> None:
    model = make_model()
    batch = dataclasses.replace(make_batch((["a dog"], {"dog": Box(0.5, 0, 0.75, 1)})), views=[view])
    output = decode(model, batch)
    loss = make_term(model)(output, batch.features, batch)
    mass = output.attention_weights[0, 0, 1].view(GRID)[:, columns].sum()
    torch.testing.assert_close(loss, -mass.log() if columns else torch.zeros(()))


def test_boxes_of_a_cropped_view_of_an_image_that_is_not_square(tmp_path: Path) -> None:
    """The right half of the image is square already; its first quarter is the box."""
    Image.new("RGB", (200, 100)).save(tmp_path / "a.jpg")
    model = make_model("crop")
    batch = make_batch((["a dog"], {"dog": Box(0.5, 0, 0.625, 1)}), paths=(str(tmp_path / "a.jpg"),))
    batch = dataclasses.replace(batch, views=[View(crop_box=Box(0.5, 0, 1, 1))])
    output = decode(model, batch)
    loss = make_term(model)(output, batch.features, batch)
    torch.testing.assert_close(loss, -output.attention_weights[0, 0, 1].view(GRID)[:, 0].sum().log())


def test_boxes_of_a_cropped_image(tmp_path: Path) -> None:
    Image.new("RGB", (200, 100)).save(tmp_path / "a.jpg")
    model = make_model("crop")
    batch = make_batch((["a dog"], {"dog": Box(0.25, 0, 0.375, 1)}), paths=(str(tmp_path / "a.jpg"),))
    output = decode(model, batch)
    loss = make_term(model)(output, batch.features, batch)
    column = output.attention_weights[0, 0, 1].view(GRID)[:, 0]
    torch.testing.assert_close(loss, -column.sum().log())


def test_word_alone_and_after_another_word() -> None:
    categories = TokenCategories(VOCABULARY.tokens)
    ids = torch.tensor(VOCABULARY.encode(["a", "hot", "dog", "eats", "dog"]))
    names = {category_id: category for category, category_id in categories.category_ids.items()}
    found = [names[category_id] for category_id in categories(ids[:-1], ids[1:]).tolist()]
    assert found == ["a", "hot", "hot dog", "eat", "dog", "<end>"]


def test_vocabulary_without_pairs() -> None:
    categories = TokenCategories([*Vocabulary.SPECIAL_TOKENS, "dog"])
    assert categories(torch.tensor([1]), torch.tensor([4])).item() == categories.category_ids["dog"]


def test_requires_all_locations() -> None:
    with pytest.raises(CaptioningError, match="location_dropout"):
        make_term(make_model(location_dropout=0.5))


def test_term_is_independent_of_the_order_of_the_batch() -> None:
    model = make_model()
    batch = make_batch((["a dog"], {"dog": DOG}), (["a man eats"], {"person": LEFT_HALF}))
    swapped = dataclasses.replace(
        batch,
        features=batch.features.flip(0),
        token_ids=batch.token_ids.flip(0),
        lengths=batch.lengths.flip(0),
        records=batch.records[::-1],
    )
    term = make_term(model)
    losses = [term(decode(model, b), b.features, b) for b in (batch, swapped)]
    torch.testing.assert_close(*losses)
