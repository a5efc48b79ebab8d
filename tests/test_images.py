import io
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from captioning.errors import CaptioningError
from captioning.images import Box, Transform, open_image

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
    ("image", "colour"),
    [
        (Image.new("RGBA", (4, 4), (255, 0, 0, 0)), (255, 255, 255)),  # transparent: the page shines through
        (Image.new("L", (4, 4), 7), (7, 7, 7)),
        (Image.fromarray(np.full((4, 4), 40 << 8, np.uint16)), (40, 40, 40)),
        (Image.new("CMYK", (4, 4), (0, 0, 0, 255)), (0, 0, 0)),
        (Image.new("P", (4, 4)), (0, 0, 0)),
    ],
)
def test_any_mode_becomes_rgb(image: Image.Image, colour: tuple[int, int, int]) -> None:
    assert open_image(image).getpixel((1, 1)) == colour


def test_shrinks_a_large_jpeg_while_decoding(tmp_path: Path) -> None:
    Image.new("RGB", (1600, 1200), "blue").save(tmp_path / "large.jpg")
    small = open_image(tmp_path / "large.jpg", smallest_side=128)
    assert small.size == (200, 150)


def test_what_is_not_a_picture_is_named(photo: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "half.jpg").write_bytes(photo.read_bytes()[:700])
    (tmp_path / "empty.jpg").write_bytes(b"")
    for name, message in (
        ("text.jpg", "not a picture"),
        ("half.jpg", "cannot be read"),
        ("empty.jpg", "not a picture"),
        ("none.jpg", "no such file"),
        ("", "is a folder"),
    ):
        with pytest.raises(CaptioningError, match=message) as caught:
            open_image(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    Image.new("1", (400, 400)).save(buffer, "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(CaptioningError, match="more pixels than is safe"):
        open_image(buffer.getvalue())


def test_more_pixels_than_wanted_are_not_decoded(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_image(photo, most_pixels=120 * 80).size == (120, 80)
    monkeypatch.setattr(ImageFile.ImageFile, "load", None)
    with pytest.raises(CaptioningError, match=r"photo\.jpg: has more pixels than is safe"):
        open_image(photo, most_pixels=120 * 80 - 1)


def test_what_another_program_would_draw_is_no_picture() -> None:
    with pytest.raises(CaptioningError, match="not a picture"):
        open_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")


def test_a_damaged_file_is_an_error_like_any_other() -> None:
    """Byte by byte: decoders raise many kinds of exceptions, and all come out as one."""
    exif = Image.Exif()
    exif[0x0112] = 6
    chance = random.Random(0)
    for file_format in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "AVIF"):
        buffer = io.BytesIO()
        Image.linear_gradient("L").resize((40, 30)).convert("RGB").save(buffer, file_format, exif=exif)
        for _ in range(60):
            data = bytearray(buffer.getvalue())
            for _ in range(chance.choice((1, 5, 20))):
                data[chance.randrange(min(len(data), chance.choice((64, 400))))] = chance.randrange(256)
            try:
                opened = open_image(bytes(data), 32, most_pixels=10_000)
            except CaptioningError:
                continue
            assert opened.mode == "RGB"


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("size", [(120, 80), (80, 120), (64, 64)])
def test_a_cell_covers_what_the_cnn_sees_there(fit: str, size: tuple[int, int]) -> None:
    """Paint the part of the photo that a cell is said to cover: exactly that cell of the square must change."""
    transform = Transform(64, fit=fit, **PLAIN)
    row, column, grid = 3, 5, (8, 8)
    cell = transform.cell(row, column, grid, *size)
    photo = Image.new("RGB", size, "black")
    corners = (cell.left * size[0], cell.top * size[1], cell.right * size[0], cell.bottom * size[1])
    photo.paste("white", tuple(round(edge) for edge in corners))
    lit = transform(photo)[0].unflatten(0, (8, 8)).unflatten(2, (8, 8)).mean((1, 3))  # (8, 8)
    inside = lit[row, column]
    outside = lit.clone()
    if fit == "pad":  # the border takes the colour of the mean, black here
        assert transform.window(*size).left <= 0
    outside[row - 1 : row + 2, column - 1 : column + 2] = 0
    assert inside > 0.6
    assert outside.max() < 0.05


def test_windows() -> None:
    assert Transform(64, fit="stretch", **PLAIN).window(200, 100) == Box(0, 0, 1, 1)
    assert Transform(64, fit="crop", **PLAIN).window(200, 100) == Box(0.25, 0, 0.75, 1)
    assert Transform(64, fit="pad", **PLAIN).window(200, 100) == Box(0, -0.5, 1, 1.5)
    assert Transform(64, fit="pad", **PLAIN).cell(0, 0, (4, 4), 200, 100) == Box(0, 0, 0.25, 0)  # all border


def test_normalises() -> None:
    transform = Transform(32, mean=(0.5, 0.0, 1.0), std=(0.5, 1.0, 2.0))
    pixels = transform(Image.new("RGB", (50, 40), (255, 0, 51)))
    assert pixels.shape == (3, 32, 32)
    torch.testing.assert_close(pixels[:, 0, 0], torch.tensor([1.0, 0.0, -0.4]))
