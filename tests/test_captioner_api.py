"""The Python API as users of pipelines expect it: kinds of input, options of a call, errors, devices, processes."""

import io
import multiprocessing
import os
import pickle
import re
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import captioning
from captioning import Caption, Captioner
from captioning.preprocessing.image import open_image
from captioning.utils.errors import CaptioningError


def test_every_kind_of_input_yields_the_same_caption(captioner: Captioner, photo: Path) -> None:
    opened = open_image(photo)
    array = np.asarray(opened)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    inputs = [photo, str(photo), photo.read_bytes(), opened, array, array / 255, tensor, tensor.float() / 255]
    expected = captioner(photo)
    for image in inputs:
        assert captioner(image).text == expected.text, type(image)
    for images in (inputs, tuple(inputs), iter(inputs), (image for image in inputs)):
        assert [caption.text for caption in captioner(images)] == [expected.text] * len(inputs)


@pytest.mark.parametrize(
    "value",
    [5, None, [5], [None], {"image": "photo.jpg"}.items(), {"image": "photo.jpg"}, bytearray(b"x"), io.BytesIO(b"x")],
)
def test_other_inputs_are_refused_in_one_line(captioner: Captioner, value: object) -> None:
    with pytest.raises(CaptioningError) as caught:
        captioner(value)
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


def test_a_caption_opens_its_file_after_a_change_of_the_working_directory(
    captioner: Captioner, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photo.parent)
    caption = captioner(photo.name)
    other = tmp_path / "other"
    other.mkdir()
    Image.new("RGB", (30, 40)).save(other / photo.name)
    monkeypatch.chdir(other)
    assert caption.open_image().size == open_image(photo).size


def test_uint16_arrays_with_8_bit_values_are_refused(captioner: Captioner, photo: Path) -> None:
    """Their high bytes are all zero: a black image."""
    array = np.asarray(open_image(photo))
    assert captioner(array.astype(np.uint16) * 257).text == captioner(array).text
    with pytest.raises(CaptioningError, match=r"uint16 must be in \[0, 65535\], got at most 255; convert it to uint8"):
        captioner(array.astype(np.uint16))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": "3"}, "num_beams must be a whole number, got '3'"),
        ({"num_beams": 2.5}, "num_beams must be a whole number, got 2.5"),
        ({"num_beams": True}, "num_beams must be a whole number, got True"),
        ({"num_beams": 100_000}, "num_beams must be <= 1000, got 100000"),
        ({"do_sample": "no"}, "do_sample must be True or False, got 'no'"),
        ({"do_sample": True, "temperature": float("inf")}, "temperature must be finite, got inf"),
    ],
)
def test_options_of_a_wrong_type_are_refused(
    captioner: Captioner, photo: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(CaptioningError, match=re.escape(message)):
        captioner(photo, **options)


def test_a_gallery_of_one_image(captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    index = captioner.gallery(photo, tmp_path / "gallery", formats="png")
    assert index.read_text().count("photo.png") >= 1


def test_names_of_the_package_are_listed() -> None:
    assert set(captioning.__all__) <= set(dir(captioning))
    with pytest.raises(AttributeError):
        _ = captioning.Captoiner


def test_options_of_a_call_apply_to_this_call_only(captioner: Captioner, photo: Path) -> None:
    before = captioner(photo)
    caption = captioner(photo, num_beams=4, num_return_sequences=3, max_length=5)
    assert len(caption.alternatives) == 2
    assert len(caption.words) <= 5
    assert caption == captioner.with_options(num_beams=4, num_return_sequences=3, max_length=5)(photo)
    assert captioner(photo) == before
    assert len(captioner([photo] * 3, batch_size=2)) == 3


def test_a_call_with_a_seed_is_reproducible(captioner: Captioner, photo: Path) -> None:
    def sample(**options: int) -> list[str]:
        return [captioner(photo, do_sample=True, temperature=2.0, **options).text for _ in range(6)]

    assert len(set(sample())) > 1, "without a seed, the generator continues"
    assert len(set(sample(seed=3))) == 1


def test_unknown_options_name_the_nearest(captioner: Captioner, photo: Path) -> None:
    with pytest.raises(CaptioningError, match="unknown option 'num_beam'; did you mean 'num_beams'"):
        captioner(photo, num_beam=3)
    with pytest.raises(CaptioningError, match="unknown option 'xyz'; the generation settings are max_length"):
        captioner.with_options(xyz=1)
    with pytest.raises(CaptioningError, match="batch_size must be >= 1, got 0"):
        captioner([photo], batch_size=0)


def test_errors_are_raised_or_returned(captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    images = [photo, tmp_path / "none.jpg", np.zeros((2, 2)) + 7, photo]
    results = captioner(images, errors="return", batch_size=2)
    assert [isinstance(result, Caption) for result in results] == [True, False, False, True]
    assert isinstance(results[1], FileNotFoundError)
    assert isinstance(captioner(tmp_path / "none.jpg", errors="return"), CaptioningError)
    with pytest.raises(FileNotFoundError):
        captioner(images)
    with pytest.raises(CaptioningError, match="errors must be 'raise' or 'return', got 'ignore'"):
        captioner(images, errors="ignore")


def test_devices(captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    captioner.save(tmp_path / "model.safetensors")
    loaded = Captioner.from_pretrained(tmp_path / "model.safetensors", device=torch.device("cpu"))
    assert loaded.device == torch.device("cpu")
    assert loaded.to("cpu") is loaded
    assert loaded(photo).text == captioner(photo).text
    for device in ("cuda:99", "gpu", "meta"):
        with pytest.raises(CaptioningError, match=f"device '{device}' is not available") as caught:
            Captioner.from_pretrained(tmp_path / "model.safetensors", device=device)
        assert "\n" not in str(caught.value)
        with pytest.raises(CaptioningError, match=f"device '{device}' is not available"):
            captioner.to(device)


def test_pretrained_models_are_listed() -> None:
    names = captioning.list_pretrained()
    assert names[0] == Captioner.from_pretrained.__func__.__defaults__[0]
    assert all(isinstance(name, str) for name in names)


def test_a_pickled_captioner_is_equal(hard_captioner: Captioner, photo: Path) -> None:
    hard_captioner.attention_mode = "sample"
    hard_captioner(photo)  # the random generator has advanced
    copy = pickle.loads(pickle.dumps(hard_captioner))
    assert copy.generation == hard_captioner.generation
    assert copy(photo) == hard_captioner(photo)
    caption = hard_captioner(photo)
    assert pickle.loads(pickle.dumps(caption)) == caption


def test_captions_in_a_spawned_process(captioner: Captioner, photo: Path) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        caption = pool.submit(captioner, photo).result()
    assert caption.text == captioner(photo).text
    np.testing.assert_allclose(caption.attention_maps, captioner(photo).attention_maps, atol=1e-6)


def test_a_forked_process_fails_instead_of_hanging(captioner: Captioner, photo: Path) -> None:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        captioner(photo)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                captioner(photo)
            except CaptioningError as error:
                status = 0 if "spawn" in str(error) else 2
            try:
                Captioner.from_pretrained()
                status = 3
            except CaptioningError:
                pass
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        captioner(photo)  # the parent is not affected
    finally:
        torch.set_num_threads(num_threads)


def test_gallery(captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    images = [photo, np.asarray(open_image(photo)), tmp_path / "none.jpg", photo.read_bytes()]
    with pytest.warns(UserWarning, match=r"none\.jpg: no such file"):
        index = captioner.gallery(images, tmp_path / "gallery", formats=("html", "png"), colormap="hot")
    assert index == tmp_path / "gallery" / "index.html"
    names = {path.name for path in index.parent.glob("[!.]*") if path.is_file() and "none" not in path.name}
    assert names == {"index.html"} | {
        f"{stem}.{kind}" for stem in ("photo", "image-2", "image-4") for kind in ("html", "png")
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert captioner.gallery(iter([photo]), tmp_path / "one").name == "index.html"


def test_the_image_is_kept_by_the_caption(captioner: Captioner, photo: Path) -> None:
    """The overlay does not change if the caller closes, changes or deletes the image."""
    path = photo.with_name("copy.jpg")
    path.write_bytes(photo.read_bytes())
    with Image.open(photo) as closed:
        captions = captioner([path, closed, changed := np.array(open_image(photo))])
    expected = [np.asarray(caption.overlay()) for caption in captions]
    path.unlink()
    changed[:] = 0
    for caption, pixels in zip(captions, expected, strict=True):
        np.testing.assert_allclose(np.asarray(caption.overlay()).astype(int), pixels, atol=40)
        assert np.abs(np.asarray(caption.overlay()).astype(int) - pixels).mean() < 2
