import io
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from captioning.preprocessing.image import Box, ImageTransform, open_image, read_image_size
from captioning.utils.errors import CaptioningError

PLAIN = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


def test_opens_file_bytes_and_image_alike(photo: Path) -> None:
    from_file = np.asarray(open_image(photo))
    assert from_file.shape == (80, 120, 3)
    for other in (str(photo), photo.read_bytes(), Image.open(photo)):
        np.testing.assert_array_equal(np.asarray(open_image(other)), from_file)


def test_is_upright(tmp_path: Path) -> None:
    image = Image.new("RGB", (40, 20), "white")
    image.paste("red", (0, 0, 10, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the left edge is the top
    image.save(tmp_path / "turned.png", exif=exif)
    opened = open_image(tmp_path / "turned.png")
    assert opened.size == (20, 40)
    assert opened.getpixel((10, 2)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("image", "color"),
    [
        (Image.new("RGBA", (4, 4), (255, 0, 0, 0)), (255, 255, 255)),  # transparent: the page shines through
        (Image.new("L", (4, 4), 7), (7, 7, 7)),
        (Image.fromarray(np.full((4, 4), 40 << 8, np.uint16)), (40, 40, 40)),
        (Image.new("CMYK", (4, 4), (0, 0, 0, 255)), (0, 0, 0)),
        (Image.new("P", (4, 4)), (0, 0, 0)),
    ],
)
def test_any_mode_becomes_rgb(image: Image.Image, color: tuple[int, int, int]) -> None:
    assert open_image(image).getpixel((1, 1)) == color


def test_shrinks_a_large_jpeg_while_decoding(tmp_path: Path) -> None:
    Image.new("RGB", (1600, 1200), "blue").save(tmp_path / "large.jpg")
    small = open_image(tmp_path / "large.jpg", min_side=128)
    assert small.size == (200, 150)


def test_files_that_are_not_images_are_named(photo: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "half.jpg").write_bytes(photo.read_bytes()[:700])
    (tmp_path / "empty.jpg").write_bytes(b"")
    for name, message in (
        ("text.jpg", "not an image"),
        ("half.jpg", "cannot be read"),
        ("empty.jpg", "the file is empty"),
        ("none.jpg", "no such file"),
        ("", "is a directory"),
    ):
        with pytest.raises(CaptioningError, match=message) as caught:
            open_image(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    Image.new("1", (400, 400)).save(buffer, "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(CaptioningError, match="exceeds the maximum number of pixels"):
        open_image(buffer.getvalue())


def test_images_above_max_pixels_are_not_decoded(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_image(photo, max_pixels=120 * 80).size == (120, 80)
    monkeypatch.setattr(ImageFile.ImageFile, "load", None)
    with pytest.raises(
        CaptioningError, match=r"photo\.jpg: 120 × 80 pixels exceed the maximum of 0\.009599 megapixels"
    ):
        open_image(photo, max_pixels=120 * 80 - 1)


def test_formats_that_need_another_program_are_refused() -> None:
    with pytest.raises(CaptioningError, match="not an image"):
        open_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")


def test_a_damaged_file_is_an_error_like_any_other() -> None:
    """Byte by byte: decoders raise many kinds of exceptions, and all come out as one."""
    exif = Image.Exif()
    exif[0x0112] = 6
    rng = random.Random(0)
    for file_format in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "AVIF"):
        buffer = io.BytesIO()
        Image.linear_gradient("L").resize((40, 30)).convert("RGB").save(buffer, file_format, exif=exif)
        for _ in range(60):
            data = bytearray(buffer.getvalue())
            for _ in range(rng.choice((1, 5, 20))):
                data[rng.randrange(min(len(data), rng.choice((64, 400))))] = rng.randrange(256)
            try:
                opened = open_image(bytes(data), 32, max_pixels=10_000)
            except CaptioningError:
                continue
            assert opened.mode == "RGB"


@pytest.mark.parametrize("resize_mode", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("size", [(120, 80), (80, 120), (64, 64)])
def test_cell_box_covers_the_pixels_of_a_cell(resize_mode: str, size: tuple[int, int]) -> None:
    """Painting the box of a cell changes exactly this cell of the input."""
    transform = ImageTransform(64, resize_mode=resize_mode, **PLAIN)
    row, column, grid = 3, 5, (8, 8)
    cell = transform.cell_box(row, column, grid, *size)
    photo = Image.new("RGB", size, "black")
    corners = (cell.left * size[0], cell.top * size[1], cell.right * size[0], cell.bottom * size[1])
    photo.paste("white", tuple(round(edge) for edge in corners))
    lit = transform(photo)[0].unflatten(0, (8, 8)).unflatten(2, (8, 8)).mean((1, 3))  # (8, 8)
    inside = lit[row, column]
    outside = lit.clone()
    if resize_mode == "pad":  # the border has the mean color, black here
        assert transform.crop_box(*size).left <= 0
    outside[row - 1 : row + 2, column - 1 : column + 2] = 0
    assert inside > 0.6
    assert outside.max() < 0.05


def test_crop_box() -> None:
    assert ImageTransform(64, resize_mode="stretch", **PLAIN).crop_box(200, 100) == Box(0, 0, 1, 1)
    assert ImageTransform(64, resize_mode="crop", **PLAIN).crop_box(200, 100) == Box(0.25, 0, 0.75, 1)
    assert ImageTransform(64, resize_mode="pad", **PLAIN).crop_box(200, 100) == Box(0, -0.5, 1, 1.5)
    assert ImageTransform(64, resize_mode="pad", **PLAIN).cell_box(0, 0, (4, 4), 200, 100) == Box(
        0, 0, 0.25, 0
    )  # all border


def test_normalization() -> None:
    transform = ImageTransform(32, mean=(0.5, 0.0, 1.0), std=(0.5, 1.0, 2.0))
    pixels = transform(Image.new("RGB", (50, 40), (255, 0, 51)))
    assert pixels.shape == (3, 32, 32)
    torch.testing.assert_close(pixels[:, 0, 0], torch.tensor([1.0, 0.0, -0.4]))


def test_opens_heic(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    image = Image.new("RGB", (64, 48), (200, 30, 30))
    path = tmp_path / "photo.HEIC"
    pillow_heif.from_pillow(image).save(path)
    for source in (path, path.read_bytes()):
        opened = open_image(source)
        assert opened.size == (64, 48)
        np.testing.assert_allclose(opened.getpixel((9, 9)), (200, 30, 30), atol=8)


def test_heic_without_pillow_heif_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(CaptioningError, match="pip install pillow-heif"):
        open_image(b"\0\0\0\x18ftypheic" + bytes(64))


def test_an_empty_image_is_refused() -> None:
    with pytest.raises(CaptioningError, match="no pixels"):
        open_image(Image.new("RGB", (0, 4)))


@pytest.mark.parametrize(("orientation", "size"), [(None, (40, 30)), (3, (40, 30)), (6, (30, 40))])
def test_image_size_without_decoding(tmp_path: Path, orientation: int | None, size: tuple[int, int]) -> None:
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    Image.new("RGB", (40, 30)).save(tmp_path / "a.jpg", exif=exif)
    assert read_image_size(tmp_path / "a.jpg") == open_image(tmp_path / "a.jpg").size == size


def test_image_size_of_a_file_that_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("text")
    for name in ("a.jpg", "b.jpg"):
        with pytest.raises(CaptioningError, match=f"{name}: cannot be read as an image"):
            read_image_size(tmp_path / name)


def test_a_large_photo_is_in_memory_once(tmp_path: Path) -> None:
    """Pillow takes four bytes per pixel. Turning a photo requires a second copy, so this one is upright."""
    megapixels = 24
    path = tmp_path / "large.jpg"
    Image.new("RGB", (6000, 4000), "red").save(path)
    script = (
        "import re, sys; from captioning.preprocessing.image import open_image\n"
        "peak = lambda: int(re.findall(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[0])\n"
        "before = peak(); open_image(sys.argv[1]); print((peak() - before) / 1000)"
    )
    result = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert 3 * megapixels < float(result.stdout) < 6 * megapixels
