import io

import numpy as np
import pytest
from PIL import Image, ImageCms

from captioning.preprocessing.image import open_image
from captioning.utils.errors import CaptioningError
from tests.preprocessing.icc import DISPLAY_P3, SRGB, matrix_profile


def encode(image: Image.Image, file_format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def p3_twin(image: Image.Image) -> bytes:
    """The same colors as an sRGB image, encoded in Display P3."""
    profile = ImageCms.ImageCmsProfile(io.BytesIO(matrix_profile(DISPLAY_P3)))
    converted = ImageCms.profileToProfile(image, ImageCms.createProfile("sRGB"), profile, outputMode="RGB")
    return encode(converted, icc_profile=profile.tobytes())


@pytest.fixture
def colors() -> Image.Image:
    """A gradient over red and green with blue stripes."""
    ramp = np.linspace(0, 255, 64).astype(np.uint8)
    red, green = np.meshgrid(ramp, ramp)
    blue = np.where(red // 32 % 2, 200, 40).astype(np.uint8)
    return Image.fromarray(np.stack((red, green, blue), axis=-1))


def test_a_display_p3_image_equals_its_srgb_twin(colors: Image.Image) -> None:
    content = p3_twin(colors)
    with Image.open(io.BytesIO(content)) as unconverted:
        assert np.abs(np.asarray(unconverted).astype(int) - np.asarray(colors)).max() > 20, "the pixels differ"
    difference = np.abs(np.asarray(open_image(content)).astype(int) - np.asarray(colors))
    assert np.quantile(difference, 0.99) <= 3  # 8 bits are coarse where one channel is dark
    assert difference.max() <= 10
    assert difference.mean() < 0.5


@pytest.mark.parametrize("profile", [matrix_profile(SRGB), b"not a profile", ImageCms.createProfile("LAB")])
def test_pixels_of_srgb_and_of_unusable_profiles_are_kept(colors: Image.Image, profile: object) -> None:
    data = profile if isinstance(profile, bytes) else ImageCms.ImageCmsProfile(profile).tobytes()
    np.testing.assert_array_equal(np.asarray(open_image(encode(colors, icc_profile=data))), np.asarray(colors))


def test_the_profile_applies_with_transparency_and_palette(colors: Image.Image) -> None:
    profile = matrix_profile(DISPLAY_P3)
    expected = np.asarray(open_image(encode(colors, icc_profile=profile)))
    transparent = encode(colors.convert("RGBA"), icc_profile=profile)
    np.testing.assert_array_equal(np.asarray(open_image(transparent)), expected)
    palette = open_image(encode(colors.quantize(16), icc_profile=profile))
    plain = open_image(encode(colors.quantize(16)))
    assert np.abs(np.asarray(palette).astype(int) - np.asarray(plain)).max() > 10


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.full((4, 4), 0.5, np.float32), 128),
        (np.full((4, 4), 40, np.float32), 40),
        (np.full((4, 4), 40, np.int32), 40),
        (np.full((4, 4), 40 << 8, np.int32), 40),
        (np.full((4, 4), 40 << 8, np.uint16), 40),
    ],
)
def test_deep_images_are_rescaled(values: np.ndarray, expected: int) -> None:
    content = encode(Image.fromarray(values), "TIFF")
    assert open_image(content).getpixel((1, 1)) == (expected,) * 3


@pytest.mark.parametrize("value", [-1.0, 300.0, float("nan")])
def test_floats_that_would_be_blank_are_refused(value: float) -> None:
    content = encode(Image.fromarray(np.full((4, 4), value, np.float32)), "TIFF")
    with pytest.raises(CaptioningError, match=r"pixel values must be in \[0, 1\], in \[0, 255\]"):
        open_image(content)
