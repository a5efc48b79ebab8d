import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from captioning import Captioner
from captioning.generation import GenerationConfig
from captioning.models.encoder import Encoder
from captioning.models.receptive_field import receptive_field
from captioning.preprocessing.image import open_image
from captioning.utils.errors import CaptioningError
from tests.conftest import make_captioner


def test_a_caption_has_words_probabilities_and_maps(captioner: Captioner, photo: Path) -> None:
    caption = captioner(photo)
    assert caption.text == " ".join(caption.words)
    assert caption.words
    assert caption.attention_maps.shape == (len(caption.words), 8, 8)
    np.testing.assert_allclose(caption.attention_maps.sum((1, 2)), 1, rtol=1e-5)
    assert len(caption.token_probs) in (len(caption.words), len(caption.words) + 1)  # one more if it is finished
    mean = sum(map(math.log, caption.token_probs)) / len(caption.token_probs)
    assert caption.score == pytest.approx(math.exp(mean))
    assert caption.overlay().width > 400


def test_to_dict_returns_json_values(photo: Path) -> None:
    captioner = make_captioner()
    captioner.generation, captioner.num_return_sequences = GenerationConfig(num_beams=3, max_length=8), 3
    captioner.encoder.transform = Encoder("tiny", resize_mode="crop").transform
    caption = captioner(photo)
    values = json.loads(json.dumps(caption.to_dict()))
    assert list(values) == ["caption", "score", "crop_box", "receptive_field", "words", "alternatives"]
    assert values["caption"] == caption.text
    assert values["score"] == pytest.approx(caption.score, abs=1e-4)
    assert values["crop_box"] == pytest.approx((1 / 6, 0, 5 / 6, 1), abs=1e-5)
    assert values["receptive_field"] is None
    assert [entry["word"] for entry in values["words"]] == caption.words
    assert [entry["probability"] for entry in values["words"]] == pytest.approx(
        caption.token_probs[: len(caption.words)], abs=1e-4
    )
    attention_maps = [entry["attention_map"] for entry in values["words"]]
    np.testing.assert_allclose(attention_maps, caption.attention_maps, atol=1e-4)
    assert [entry["caption"] for entry in values["alternatives"]] == [other.text for other in caption.alternatives]
    assert all(list(entry) == list(values)[:-1] for entry in values["alternatives"])
    without_maps = caption.to_dict(attention_maps=False)
    assert list(without_maps) == ["caption", "score", "words", "alternatives"]
    assert list(without_maps["words"][0]) == ["word", "probability", "context_gate"]


@pytest.mark.parametrize(
    ("resize_mode", "width_ratio", "height_ratio"), [("stretch", 1, 1), ("crop", 2 / 3, 1), ("pad", 1, 1.5)]
)
def test_only_single_locations_have_a_receptive_field(
    hard_captioner: Captioner, photo: Path, resize_mode: str, width_ratio: float, height_ratio: float
) -> None:
    hard_captioner.encoder.transform = Encoder("tiny", resize_mode=resize_mode).transform
    width, height = receptive_field(hard_captioner.encoder)
    for attention_mode in (None, "argmax", "sample"):
        hard_captioner.attention_mode = attention_mode
        expected = (width * width_ratio, height * height_ratio)
        assert hard_captioner(photo).receptive_field == pytest.approx(expected)
    hard_captioner.attention_mode = "expectation"
    assert hard_captioner(photo).receptive_field is None


@pytest.mark.parametrize("gate", ["scalar", "vector"])
def test_context_gates(gate: str, photo: Path) -> None:
    caption = make_captioner(context_gate=gate).with_options(num_beams=2, num_return_sequences=2)(photo)
    for alternative in (caption, *caption.alternatives):
        assert alternative.context_gates is not None
        assert len(alternative.context_gates) == len(alternative.words)
        assert all(0 < value < 1 for value in alternative.context_gates)
        values = [word["context_gate"] for word in alternative.to_dict()["words"]]
        assert values == pytest.approx(alternative.context_gates, abs=1e-4)


def test_no_context_gates_without_a_gate(photo: Path) -> None:
    caption = make_captioner(context_gate="none")(photo)
    assert caption.context_gates is None
    assert all("context_gate" not in word for word in caption.to_dict()["words"])


def test_path_bytes_and_image_yield_the_same_caption(captioner: Captioner, photo: Path) -> None:
    expected = captioner(str(photo))
    with Image.open(photo) as image:
        images = [photo, photo.read_bytes(), image.copy()]
    for caption in (*(captioner(image) for image in images), *captioner(images)):
        assert caption.text == expected.text
        # The batch size, 3 or 1, affects rounding.
        np.testing.assert_allclose(caption.attention_maps, expected.attention_maps, rtol=1e-4, atol=1e-6)
    assert captioner([]) == []


def test_hard_attention_selects_one_location_and_the_file_keeps_the_mode(
    hard_captioner: Captioner, drawn: Path, tmp_path: Path
) -> None:
    images = sorted((drawn / "images").iterdir())[:20]
    maps = {}
    for attention_mode in ("argmax", "sample", "expectation"):
        hard_captioner.attention_mode = attention_mode
        path = tmp_path / f"{attention_mode}.safetensors"
        hard_captioner.save(path)
        captions = Captioner.from_pretrained(path)(images)
        maps[attention_mode] = np.concatenate([caption.attention_maps.reshape(-1, 64) for caption in captions])
    for attention_mode in ("argmax", "sample"):
        assert set(np.unique(maps[attention_mode])) == {0.0, 1.0}
        assert (maps[attention_mode].sum(1) == 1).all()
    assert len(np.unique(maps["expectation"])) > 100


def test_with_options_shares_the_modules(hard_captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    hard_captioner.save(tmp_path / "hard.safetensors")
    before = hard_captioner(photo)
    options = {
        "num_beams": 4,
        "num_return_sequences": 3,
        "attention_mode": "expectation",
        "no_repeat_ngram_size": None,
    }
    changed = hard_captioner.with_options(**options)
    assert changed.decoder is hard_captioner.decoder
    assert changed.encoder is hard_captioner.encoder
    expected = Captioner.from_pretrained(tmp_path / "hard.safetensors", **options)(photo)
    caption = changed(photo)
    assert [item.text for item in (caption, *caption.alternatives)] == [
        item.text for item in (expected, *expected.alternatives)
    ]
    np.testing.assert_allclose(caption.attention_maps, expected.attention_maps, atol=1e-6)
    assert hard_captioner(photo).text == before.text, "the original captioner is unchanged"
    with pytest.raises(CaptioningError, match=r"num_return_sequences must be in \[1, 4\], got 5"):
        changed.with_options(num_return_sequences=5)
    assert not changed.is_stochastic
    assert changed.with_options(do_sample=True).is_stochastic
    assert changed.with_options(attention_mode="sample").is_stochastic


def test_the_seed_determines_sampled_locations(hard_captioner: Captioner, drawn: Path, tmp_path: Path) -> None:
    path = tmp_path / "hard.safetensors"
    hard_captioner.save(path)
    images = sorted((drawn / "images").iterdir())[:20]

    def sampled_locations(seed: int) -> list[list[int]]:
        captions = Captioner.from_pretrained(path, attention_mode="sample", seed=seed)(images)
        return [caption.attention_maps.reshape(-1, 64).argmax(1).tolist() for caption in captions]

    assert sampled_locations(0) == sampled_locations(0)
    assert sampled_locations(0) != sampled_locations(1)


def test_a_batch_equals_single_images(captioner: Captioner, drawn: Path) -> None:
    images = sorted((drawn / "images").iterdir())[:20]
    batched = captioner(images)
    assert len({caption.text for caption in batched}) > 1
    for image, caption in zip(images, batched, strict=True):
        single = captioner(image)
        assert single.text == caption.text
        assert single.score == pytest.approx(caption.score, rel=1e-4)
        np.testing.assert_allclose(single.attention_maps, caption.attention_maps, atol=1e-5)


def test_a_corrupt_image_does_not_affect_the_others(captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_text("x")
    images = [photo, tmp_path / "broken.jpg", photo, tmp_path / "none.jpg"]
    results = list(captioner.iter_captions(images, batch_size=3))
    assert [isinstance(result, CaptioningError) for result in results] == [False, True, False, True]
    with pytest.raises(CaptioningError, match=r"broken\.jpg"):
        captioner([photo, tmp_path / "broken.jpg"])


def test_save_and_load_restore_the_captioner(captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    captioner.encoder.transform = Encoder("tiny", resize_mode="crop").transform
    captioner.save(tmp_path / "model.safetensors")
    loaded = Captioner.from_pretrained(tmp_path / "model.safetensors")
    for module in ("encoder", "decoder"):
        before, after = getattr(captioner, module).state_dict(), getattr(loaded, module).state_dict()
        assert before.keys() == after.keys()
        for name in before:
            assert torch.equal(before[name], after[name]), name
    assert loaded.encoder.transform == captioner.encoder.transform
    assert loaded.generation == captioner.generation
    assert loaded(photo).text == captioner(photo).text
    assert loaded(photo).score == pytest.approx(captioner(photo).score, rel=1e-5)
    assert loaded.vocabulary.tokens == captioner.vocabulary.tokens
    assert [path.name for path in tmp_path.iterdir() if "model" in path.name] == ["model.safetensors"]


@pytest.mark.parametrize("backbone", ["resnet18", "efficientnet_lite0", "efficientnet_lite1_lite2"])
def test_save_and_load_support_each_kind_of_backbone(
    captioner: Captioner, photo: Path, tmp_path: Path, backbone: str
) -> None:
    original = with_encoder(captioner, Encoder(backbone, image_size=64))
    original.save(tmp_path / "model.safetensors")
    assert Captioner.from_pretrained(tmp_path / "model.safetensors")(photo).text == original(photo).text


def with_encoder(captioner: Captioner, encoder: Encoder) -> Captioner:
    """A captioner with this encoder and an untrained decoder of the matching size."""
    rows, columns = encoder.grid_size
    config = {
        **captioner.decoder.config,
        "feature_size": encoder.feature_size,
        "num_locations": rows * columns,
    }
    return Captioner(encoder, type(captioner.decoder)(**config), captioner.vocabulary, max_length=8)


def test_a_compact_file_loads_the_pretrained_encoder(captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    original = with_encoder(captioner, Encoder("efficientnet_lite0", "pretrained", image_size=64))
    original.save(tmp_path / "compact.safetensors", compact=True)
    with safe_open(tmp_path / "compact.safetensors", framework="pt") as file:
        names = list(file.keys())
        assert {file.get_tensor(name).dtype for name in names} == {torch.float16}
    assert {name.split(".")[0] for name in names} == {"decoder"}
    compact = Captioner.from_pretrained(tmp_path / "compact.safetensors")
    assert next(compact.decoder.parameters()).dtype == torch.float32
    expected, caption = original(photo), compact(photo)
    assert caption.text == expected.text
    np.testing.assert_allclose(caption.token_probs, expected.token_probs, rtol=0.02)  # stored in half precision
    for name, tensor in original.encoder.state_dict().items():
        assert torch.equal(tensor, compact.encoder.state_dict()[name]), name


def test_a_compact_file_contains_trained_encoder_tensors(captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained = Encoder("efficientnet_lite0", "pretrained", image_size=64)
    with torch.no_grad():
        trained.backbone.conv_head.weight[0] += 0.1
    original = with_encoder(captioner, trained)
    original.save(tmp_path / "compact.safetensors", compact=True)
    with safe_open(tmp_path / "compact.safetensors", framework="pt") as file:
        names = list(file.keys())
    assert [name for name in names if name.startswith("encoder.")] == ["encoder.backbone.conv_head.weight"]
    compact = Captioner.from_pretrained(tmp_path / "compact.safetensors")
    for name, tensor in trained.state_dict().items():
        torch.testing.assert_close(compact.encoder.state_dict()[name], tensor, atol=1e-6, rtol=1e-3, msg=name)
    assert compact(photo).text == original(photo).text


def test_compact_keeps_a_backbone_without_pretrained_weights(captioner: Captioner, tmp_path: Path, photo: Path) -> None:
    captioner.save(tmp_path / "compact.safetensors", compact=True)
    assert (tmp_path / "compact.safetensors").is_file()
    compact = Captioner.from_pretrained(tmp_path / "compact.safetensors")
    assert compact.encoder.state_dict().keys() == captioner.encoder.state_dict().keys()
    assert compact(photo).text == captioner(photo).text


def test_the_header_is_plain_json(captioner: Captioner, tmp_path: Path) -> None:
    captioner.save(tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()["captioning"])
    assert header["format"] == 2
    assert header["vocabulary"] == captioner.vocabulary.tokens
    assert header["transform"]["image_size"] == 64
    assert header["decoder"]["attention_score"] == "additive"
    assert header["generation"]["max_length"] == 8
    assert header["attention_mode"] is None


def test_errors_name_the_file_that_is_no_model(captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    torch.save(captioner.decoder.state_dict(), tmp_path / "model.pt")
    captioner.save(tmp_path / "new.safetensors")
    with safe_open(tmp_path / "new.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()["captioning"])
    save_file({"x": torch.zeros(1)}, tmp_path / "new.safetensors", {"captioning": json.dumps({**header, "format": 99})})
    save_file({"x": torch.zeros(1)}, tmp_path / "list.safetensors", {"captioning": "[]"})
    for name, message in (
        ("list.safetensors", "not a captioning model"),
        ("none.safetensors", "model file not found"),
        (photo.name, "not a captioning model"),
        ("other.safetensors", "not a captioning model"),
        ("model.pt", "not a captioning model"),
        ("", "model file not found"),  # a directory
        ("new.safetensors", "format 99 is newer than format 2"),
    ):
        with pytest.raises(CaptioningError, match=message) as caught:
            Captioner.from_pretrained(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_overlay_shows_the_whole_image(captioner: Captioner, photo: Path) -> None:
    """With a center crop, the maps cover the middle, and the panels still show the whole image."""
    captioner.encoder.transform = Encoder("tiny", resize_mode="crop").transform
    caption = captioner(photo)  # 120 × 80
    assert caption.crop_box == pytest.approx((1 / 6, 0, 5 / 6, 1))
    sheet = np.asarray(caption.overlay(panel_width=120)).astype(int)
    image = np.asarray(open_image(photo)).astype(int)[2:-2, 2:-2]  # panels have a border
    windows = np.lib.stride_tricks.sliding_window_view(sheet, image.shape)[..., 0, :, :, :]
    differences = abs(windows[..., 40, 60, :] - image[40, 60]).max(-1)  # of one pixel, to find candidates
    candidates = np.argwhere(differences <= 3)
    assert any(abs(windows[row, column] - image).max() <= 3 for row, column in candidates)
