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
from captioning.encoders import Encoder
from captioning.errors import CaptioningError
from captioning.images import open_image
from captioning.receptive_field import receptive_field
from captioning.search import Search
from tests.conftest import make_captioner


def test_a_caption_has_all_its_parts(captioner: Captioner, photo: Path) -> None:
    caption = captioner(photo)
    assert caption.text == " ".join(caption.words)
    assert caption.words
    assert caption.maps.shape == (len(caption.words), 8, 8)
    np.testing.assert_allclose(caption.maps.sum((1, 2)), 1, rtol=1e-5)
    assert len(caption.probabilities) in (len(caption.words), len(caption.words) + 1)  # one more if it ended
    mean = sum(map(math.log, caption.probabilities)) / len(caption.probabilities)
    assert caption.score == pytest.approx(math.exp(mean))
    assert caption.overlay().width > 400


def test_a_caption_is_described_in_plain_values(photo: Path) -> None:
    captioner = make_captioner()
    captioner.search, captioner.n_best = Search(beam=3, maximum_length=8), 3
    captioner.encoder.transform = Encoder("tiny", fit="crop").transform
    caption = captioner(photo)
    described = json.loads(json.dumps(caption.describe()))
    assert list(described) == ["caption", "score", "window", "field", "words", "others"]
    assert described["caption"] == caption.text
    assert described["score"] == pytest.approx(caption.score, abs=1e-4)
    assert described["window"] == pytest.approx((1 / 6, 0, 5 / 6, 1), abs=1e-5)
    assert described["field"] is None
    assert [entry["word"] for entry in described["words"]] == caption.words
    assert [entry["probability"] for entry in described["words"]] == pytest.approx(
        caption.probabilities[: len(caption.words)], abs=1e-4
    )
    np.testing.assert_allclose([entry["map"] for entry in described["words"]], caption.maps, atol=1e-4)
    assert [other["caption"] for other in described["others"]] == [other.text for other in caption.others]
    assert all(list(other) == list(described)[:-1] for other in described["others"])
    small = caption.describe(maps=False)
    assert list(small) == ["caption", "score", "words", "others"]
    assert list(small["words"][0]) == ["word", "probability"]


@pytest.mark.parametrize(("fit", "across", "down"), [("stretch", 1, 1), ("crop", 2 / 3, 1), ("pad", 1, 1.5)])
def test_only_a_hard_look_has_a_field(
    hard_captioner: Captioner, photo: Path, fit: str, across: float, down: float
) -> None:
    hard_captioner.encoder.transform = Encoder("tiny", fit=fit).transform
    field = receptive_field(hard_captioner.encoder)
    for look in (None, "argmax", "sample"):
        hard_captioner.look = look
        assert hard_captioner(photo).field == pytest.approx((field[0] * across, field[1] * down))
    hard_captioner.look = "expect"
    assert hard_captioner(photo).field is None


def test_path_bytes_image_and_list_are_the_same(captioner: Captioner, photo: Path) -> None:
    expected = captioner(str(photo))
    with Image.open(photo) as image:
        pictures = [photo, photo.read_bytes(), image.copy()]
    for caption in (*(captioner(picture) for picture in pictures), *captioner(pictures)):
        assert caption.text == expected.text
        np.testing.assert_allclose(caption.maps, expected.maps, rtol=1e-4, atol=1e-6)  # a batch of three, or of one
    assert captioner([]) == []


def test_a_hard_model_looks_at_one_place_and_a_model_file_keeps_how(
    hard_captioner: Captioner, drawn: Path, tmp_path: Path
) -> None:
    pictures = sorted((drawn / "images").iterdir())[:20]
    maps = {}
    for look in ("argmax", "sample", "expect"):
        hard_captioner.look = look
        path = tmp_path / f"{look}.safetensors"
        hard_captioner.save(path)
        captions = Captioner.load(path)(pictures)
        maps[look] = np.concatenate([caption.maps.reshape(-1, 64) for caption in captions])
    for look in ("argmax", "sample"):
        assert set(np.unique(maps[look])) == {0.0, 1.0}
        assert (maps[look].sum(1) == 1).all()
    assert len(np.unique(maps["expect"])) > 100


def test_the_same_model_captions_in_another_way(hard_captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    hard_captioner.save(tmp_path / "hard.safetensors")
    before = hard_captioner(photo)
    options = {"beam": 4, "n_best": 3, "look": "expect", "no_repeat": None}
    other = hard_captioner.with_options(**options)
    assert other.decoder is hard_captioner.decoder
    assert other.encoder is hard_captioner.encoder
    expected = Captioner.load(tmp_path / "hard.safetensors", **options)(photo)
    caption = other(photo)
    assert [one.text for one in (caption, *caption.others)] == [one.text for one in (expected, *expected.others)]
    np.testing.assert_allclose(caption.maps, expected.maps, atol=1e-6)
    assert hard_captioner(photo).text == before.text, "the first is left as it was"
    with pytest.raises(CaptioningError, match="n_best 5: take 1 to 4"):
        other.with_options(n_best=5)
    assert [one.by_chance for one in (other, other.with_options(sample=True), other.with_options(look="sample"))] == [
        *(False, True, True)
    ]


def test_sampled_looks_follow_the_seed(hard_captioner: Captioner, drawn: Path, tmp_path: Path) -> None:
    path = tmp_path / "hard.safetensors"
    hard_captioner.save(path)
    pictures = sorted((drawn / "images").iterdir())[:20]

    def looked(seed: int) -> list[list[int]]:
        captions = Captioner.load(path, look="sample", seed=seed)(pictures)
        return [caption.maps.reshape(-1, 64).argmax(1).tolist() for caption in captions]

    assert looked(0) == looked(0)
    assert looked(0) != looked(1)


def test_alone_and_in_a_batch_are_equal(captioner: Captioner, drawn: Path) -> None:
    pictures = sorted((drawn / "images").iterdir())[:20]
    together = captioner(pictures)
    assert len({caption.text for caption in together}) > 1
    for picture, caption in zip(pictures, together, strict=True):
        alone = captioner(picture)
        assert alone.text == caption.text
        assert alone.score == pytest.approx(caption.score, rel=1e-4)
        np.testing.assert_allclose(alone.maps, caption.maps, atol=1e-5)


def test_a_broken_picture_does_not_stop_the_others(captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_text("x")
    results = list(captioner.each([photo, tmp_path / "broken.jpg", photo, tmp_path / "none.jpg"], batch_size=3))
    assert [isinstance(result, CaptioningError) for result in results] == [False, True, False, True]
    with pytest.raises(CaptioningError, match=r"broken\.jpg"):
        captioner([photo, tmp_path / "broken.jpg"])


def test_the_file_gives_back_the_same_captioner(captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    captioner.encoder.transform = Encoder("tiny", fit="crop").transform
    captioner.save(tmp_path / "model.safetensors")
    loaded = Captioner.load(tmp_path / "model.safetensors")
    for part in ("encoder", "decoder"):
        before, after = getattr(captioner, part).state_dict(), getattr(loaded, part).state_dict()
        assert before.keys() == after.keys()
        for name in before:
            assert torch.equal(before[name], after[name]), name
    assert loaded.encoder.transform == captioner.encoder.transform
    assert loaded(photo).text == captioner(photo).text
    assert loaded(photo).score == pytest.approx(captioner(photo).score, rel=1e-5)
    assert loaded.vocabulary.words == captioner.vocabulary.words
    assert [path.name for path in tmp_path.iterdir() if "model" in path.name] == ["model.safetensors"]


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_lite0", "efficientnet_lite1_lite2"])
def test_the_file_holds_any_encoder(captioner: Captioner, photo: Path, tmp_path: Path, name: str) -> None:
    whole = with_encoder(captioner, Encoder(name, image_size=64))
    whole.save(tmp_path / "model.safetensors")
    assert Captioner.load(tmp_path / "model.safetensors")(photo).text == whole(photo).text


def with_encoder(captioner: Captioner, encoder: Encoder) -> Captioner:
    rows, columns = encoder.grid
    settings = {**captioner.decoder.settings, "annotation_size": encoder.width, "places": rows * columns}
    return Captioner(encoder, type(captioner.decoder)(**settings), captioner.vocabulary, maximum_length=8)


def test_a_slim_file_finds_its_encoder(captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = with_encoder(captioner, Encoder("efficientnet_lite0", "pretrained", image_size=64))
    whole.save(tmp_path / "slim.safetensors", slim=True)
    with safe_open(tmp_path / "slim.safetensors", framework="pt") as file:
        names = list(file.keys())
        assert {file.get_tensor(name).dtype for name in names} == {torch.float16}
    assert {name.split(".")[0] for name in names} == {"decoder"}
    slim = Captioner.load(tmp_path / "slim.safetensors")
    assert next(slim.decoder.parameters()).dtype == torch.float32
    expected, caption = whole(photo), slim(photo)
    assert caption.text == expected.text
    np.testing.assert_allclose(caption.probabilities, expected.probabilities, rtol=0.02)  # of half precision
    for name, tensor in whole.encoder.state_dict().items():
        assert torch.equal(tensor, slim.encoder.state_dict()[name]), name


def test_a_slim_file_has_what_was_trained_of_the_encoder(captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained = Encoder("efficientnet_lite0", "pretrained", image_size=64)
    with torch.no_grad():
        trained.network.conv_head.weight[0] += 0.1
    whole = with_encoder(captioner, trained)
    whole.save(tmp_path / "slim.safetensors", slim=True)
    with safe_open(tmp_path / "slim.safetensors", framework="pt") as file:
        names = list(file.keys())
    assert [name for name in names if name.startswith("encoder.")] == ["encoder.network.conv_head.weight"]
    slim = Captioner.load(tmp_path / "slim.safetensors")
    for name, tensor in trained.state_dict().items():
        torch.testing.assert_close(slim.encoder.state_dict()[name], tensor, atol=1e-6, rtol=1e-3, msg=name)
    assert slim(photo).text == whole(photo).text


def test_an_encoder_that_nobody_has_cannot_be_left_out(captioner: Captioner, tmp_path: Path) -> None:
    with pytest.raises(CaptioningError, match="'tiny' has no pretrained weights"):
        captioner.save(tmp_path / "slim.safetensors", slim=True)
    assert not list(tmp_path.glob("slim*"))


def test_the_file_is_plain_data(captioner: Captioner, tmp_path: Path) -> None:
    captioner.save(tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()["captioning"])
    assert header["vocabulary"] == captioner.vocabulary.words
    assert header["transform"]["size"] == 64
    assert header["decoder"]["score"] == "additive"


def test_what_is_no_model_is_named(captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    torch.save(captioner.decoder.state_dict(), tmp_path / "model.pt")
    captioner.save(tmp_path / "new.safetensors")
    with safe_open(tmp_path / "new.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()["captioning"])
    save_file({"x": torch.zeros(1)}, tmp_path / "new.safetensors", {"captioning": json.dumps({**header, "format": 99})})
    save_file({"x": torch.zeros(1)}, tmp_path / "list.safetensors", {"captioning": "[]"})
    for name, message in (
        ("list.safetensors", "not a captioning model"),
        ("none.safetensors", "no such model file"),
        (photo.name, "not a captioning model"),
        ("other.safetensors", "not a captioning model"),
        ("model.pt", "not a captioning model"),
        ("", "not a captioning model"),
        ("new.safetensors", "format 99, this version reads 1"),
    ):
        with pytest.raises(CaptioningError, match=message) as caught:
            Captioner.load(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_overlay_lies_on_the_whole_photo(captioner: Captioner, photo: Path) -> None:
    """With a centre crop the maps lie on the middle, and the panels still show all of the photo."""
    captioner.encoder.transform = Encoder("tiny", fit="crop").transform
    caption = captioner(photo)  # 120 × 80
    assert caption.window == pytest.approx((1 / 6, 0, 5 / 6, 1))
    sheet = caption.overlay(panel_width=120)
    rows = -(-(len(caption.words) + 1) // 6)
    top = sheet.height - rows * (80 + 30 + 12)
    first_panel = sheet.crop((12, top, 132, top + 80))
    np.testing.assert_allclose(np.asarray(first_panel), np.asarray(open_image(photo)), atol=3)
