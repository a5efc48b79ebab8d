import dataclasses
import html
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from captioning import Caption, Captioner
from captioning.models.calibration import Calibration
from captioning.utils.errors import CaptioningError
from tests.preprocessing.icc import DISPLAY_P3, matrix_profile


@pytest.fixture
def caption(captioner: Captioner, photo: Path) -> Caption:
    return captioner(photo, num_beams=3, num_return_sequences=2)


def test_str_is_the_text_and_repr_is_short(caption: Caption) -> None:
    assert str(caption) == f"{caption}" == caption.text
    assert repr(caption) == f"<Caption {caption.text!r}, score {caption.score:.3f}, 1 alternatives>"


def test_equality_and_hash(captioner: Captioner, caption: Caption, photo: Path) -> None:
    same = captioner(photo.read_bytes(), num_beams=3, num_return_sequences=2)
    assert same == caption
    assert hash(same) == hash(caption)
    assert len({caption, same, caption.alternatives[0]}) == 2
    assert caption != dataclasses.replace(caption, attention_maps=caption.attention_maps[:, ::-1])
    assert caption != caption.text


@pytest.mark.parametrize("name", ["photo.html", "index.png", "x.y.gif", "maps.npz"])
def test_save_selects_the_format_by_the_suffix(caption: Caption, tmp_path: Path, name: str) -> None:
    path = tmp_path / "new" / name
    caption.save(path, opacity=0.5)
    written = {file.name for file in path.parent.iterdir()}
    assert written == {name} | ({"maps.json"} if name == "maps.npz" else set())
    if path.suffix == ".html":
        assert "photo.jpg" in path.read_text()
        assert caption.words[0] in path.read_text()
    elif path.suffix == ".npz":
        np.testing.assert_array_equal(np.load(path)["attention_maps"], caption.attention_maps)
    else:
        with Image.open(path) as image:
            assert image.format == path.suffix[1:].upper()


def test_save_refuses_other_suffixes(caption: Caption, tmp_path: Path) -> None:
    with pytest.raises(CaptioningError, match=r"x\.jpg: expected a file name that ends in one of \.html"):
        caption.save(tmp_path / "x.jpg")


def test_json_keeps_small_values(caption: Caption) -> None:
    small = dataclasses.replace(caption, token_probs=[2.5512e-06] * len(caption.token_probs))
    maps = caption.attention_maps / 1000
    values = dataclasses.replace(small, attention_maps=maps).to_dict()
    assert values["words"][0]["probability"] == values["score"] == 2.551e-06
    np.testing.assert_allclose(values["words"][0]["attention_map"], maps[0], rtol=1e-3)


def test_notebooks_show_a_self_contained_page(caption: Caption) -> None:
    (page,) = re.findall(r'^<iframe srcdoc="([^"]*)" style="[^"]*"></iframe>$', caption._repr_html_())
    content = html.unescape(page)
    assert "data:image/jpeg;base64," in content
    assert all(f'"{word}"' in content for word in caption.words)
    assert not re.findall(r'(?:src|href)="https?:', content)


def test_confidence_requires_a_calibration(caption: Caption) -> None:
    assert caption.confidence is None
    assert not caption.is_uncertain
    assert "confidence" not in caption.to_dict()
    calibrated = dataclasses.replace(caption, calibration=Calibration(2.0, 1.0, 0.5, 0.0))
    assert calibrated.confidence == pytest.approx(1 / (1 + np.exp(-1.0) * caption.score**-2))
    assert not calibrated.is_uncertain
    values = json.loads(json.dumps(calibrated.to_dict()))
    assert values["confidence"] == pytest.approx(calibrated.confidence, abs=1e-4)
    assert values["is_uncertain"] is False
    assert dataclasses.replace(caption, calibration=Calibration(2.0, 1.0, 0.5, 1.0)).is_uncertain


def test_a_model_of_photos_is_uncertain_about_other_images(captioner: Captioner, photo: Path) -> None:
    of_photos = Calibration(2.0, 1.0, 0.5, min_confidence=1e-6, photos_only=True)
    noise = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    for image, is_photo in ((photo, True), (noise, False), (np.zeros_like(noise), False)):
        caption = dataclasses.replace(captioner(image), calibration=of_photos)
        assert caption.resembles_photo == is_photo
        assert caption.is_uncertain != is_photo
        assert (caption.confidence == 0) != is_photo


def test_a_display_p3_photo_equals_its_srgb_twin(captioner: Captioner, photo: Path) -> None:
    with Image.open(photo) as image:
        twin = image.convert("RGB")
    profile = ImageCms.ImageCmsProfile(io.BytesIO(matrix_profile(DISPLAY_P3)))
    wide = ImageCms.profileToProfile(twin, ImageCms.createProfile("sRGB"), profile, outputMode="RGB")
    buffer = io.BytesIO()
    wide.save(buffer, "PNG", icc_profile=profile.tobytes())
    expected, caption = captioner(twin), captioner(buffer.getvalue())
    assert caption.text == expected.text
    difference = np.abs(np.asarray(caption.overlay()).astype(int) - np.asarray(expected.overlay()))
    assert difference.mean() < 1
