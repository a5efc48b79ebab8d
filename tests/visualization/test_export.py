"""Files that OverlayWriter writes in all formats."""

import base64
import dataclasses
import html
import io
import json
import os
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from captioning.caption import Caption
from captioning.captioner import Captioner
from captioning.preprocessing.image import Box
from captioning.utils.errors import CaptioningError
from captioning.visualization.export import OverlayWriter
from captioning.visualization.formats import FORMATS

MARKUP = "</script><script>window.broken=1</script>"


def make_caption(image: Any, words: str = "a red dog", **changes: Any) -> Caption:
    """A caption where each word attends to a different corner."""
    tokens = words.split()
    attention_maps = np.full((len(tokens), 4, 4), 0.01, np.float32)
    for index in range(len(tokens)):
        attention_maps[index, 3 * (index % 2), 3 * (index // 2 % 2)] = 0.85
    token_probs = [0.9, 0.5, 0.1, 0.8, 0.7][: len(tokens) + 1]
    caption = Caption(tokens, token_probs, attention_maps, image, Box(0, 0, 1, 1))
    return dataclasses.replace(caption, **changes)


def read_content(page: Path) -> dict[str, Any]:
    return json.loads(re.search(r'<script id="content"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)[1])


def read_image(page: Path) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(read_content(page)["image"].partition(",")[2])))


def list_files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("[!.]*") if path.is_file())


def test_all_formats(photo: Path, tmp_path: Path) -> None:
    writer = OverlayWriter(tmp_path / "new" / "out", [photo], FORMATS)
    files = writer.write(photo, make_caption(photo))
    assert writer.close() is None, "no gallery for a single image"
    output_dir = tmp_path / "new" / "out"
    frames = ["photo/01-a.png", "photo/02-red.png", "photo/03-dog.png"]
    files_of_other_formats = ["photo.gif", "photo.html", "photo.json", "photo.npz", "photo.png"]
    assert list_files(output_dir) == sorted([*frames, *files_of_other_formats])
    assert files == {
        **{name: str(output_dir / f"photo.{name}") for name in ("html", "png", "gif", "npz")},
        "frames": str(output_dir / "photo"),
    }
    with Image.open(output_dir / "photo.png") as sheet, Image.open(output_dir / "photo/02-red.png") as frame:
        assert sheet.width == 4 * 200 + 3 * 12 + 2 * 24
        assert frame.size == (120, 80)
    with Image.open(output_dir / "photo.gif") as animation:
        assert animation.n_frames == 4
        assert animation.info["loop"] == 0


def test_writes_only_the_given_formats(photo: Path, tmp_path: Path) -> None:
    for name, expected in (("gif", ["photo.gif"]), ("npz", ["photo.json", "photo.npz"])):
        output_dir = tmp_path / name
        OverlayWriter(output_dir, [photo], [name]).write(photo, make_caption(photo))
        assert list_files(output_dir) == expected


def test_npz(photo: Path, tmp_path: Path) -> None:
    caption = make_caption(photo, alternatives=(make_caption(photo, "two cats"),))
    OverlayWriter(tmp_path / "out", [photo], ["npz"]).write(photo, caption)
    with np.load(tmp_path / "out" / "photo.npz") as arrays:
        np.testing.assert_array_equal(arrays["attention_maps"], caption.attention_maps)
        np.testing.assert_array_equal(arrays["attention_maps_1"], caption.alternatives[0].attention_maps)
        assert len(arrays) == 2
    fields = json.loads((tmp_path / "out" / "photo.json").read_text())
    assert fields == {"image": "photo.jpg", **caption.to_dict()}


def test_npz_with_context_gates(photo: Path, tmp_path: Path) -> None:
    gated = make_caption(photo, context_gates=[0.1, 0.5, 0.9])
    OverlayWriter(tmp_path / "out", [photo], ["npz"]).write(photo, dataclasses.replace(gated, alternatives=(gated,)))
    with np.load(tmp_path / "out" / "photo.npz") as arrays:
        for name in ("context_gates", "context_gates_1"):
            np.testing.assert_allclose(arrays[name], [0.1, 0.5, 0.9], rtol=1e-6)


def test_page_is_self_contained(photo: Path, tmp_path: Path) -> None:
    caption = make_caption(photo, alternatives=(make_caption(photo, "two cats"),), receptive_field=(0.3, 0.3))
    OverlayWriter(tmp_path / "out", [photo], ["html"], "hot", 0.5).write(photo, caption)
    page = tmp_path / "out" / "photo.html"
    content = read_content(page)
    fields = caption.to_dict()
    alternatives = fields.pop("alternatives")
    assert content["captions"] == [fields, *alternatives]
    assert (content["colormap"], content["opacity"]) == ("hot", 0.5)
    text = page.read_text()
    assert not re.search(
        r"""(src|href)=["']?(?!data:)|https?://|@import|url\(|^import """, text.replace("http-equiv", ""), re.M
    )
    assert len(text) - len(content["image"]) < 400_000


def test_hard_attention_is_exported_as_one_location(hard_captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    OverlayWriter(tmp_path / "out", [photo], FORMATS).write(photo, hard_captioner(photo))
    (caption,) = read_content(tmp_path / "out" / "photo.html")["captions"]
    assert all(0.1 < side < 1 for side in caption["receptive_field"])
    for word in caption["words"]:
        assert sorted(weight for row in word["attention_map"] for weight in row) == [0] * 63 + [1]
    with Image.open(tmp_path / "out" / "photo.png") as sheet:
        colors = {color for _, color in sheet.convert("RGB").getcolors(2**24)}
    assert (255, 213, 74) in colors, "the cell has an outline"


def test_full_size_frames_of_a_large_image(tmp_path: Path) -> None:
    """Frames are written some rows at a time: in addition to the image itself they need little memory."""
    path = tmp_path / "large.png"
    image = Image.linear_gradient("L").resize((3000, 2000)).convert("RGB")
    image.save(path)
    writer = OverlayWriter(tmp_path / "out", [path], ["frames"])
    caption = make_caption(image, "a dog")
    tracemalloc.start()
    writer.write(path, caption)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12e6, "NumPy and zlib: less than one frame of 18 MB"
    with Image.open(tmp_path / "out" / "large" / "02-dog.png") as frame:
        frame.load()
        assert frame.size == (3000, 2000)
        expected = caption.renderer()(image, 1)
        difference = np.abs(np.asarray(frame, int)[300:] - np.asarray(expected, int)[300:])  # below the label
        assert np.percentile(difference, 99) <= 1


def test_images_are_upright_and_downscaled(tmp_path: Path) -> None:
    image = Image.new("RGB", (1600, 1000), "white")
    image.paste("red", (0, 0, 400, 1000))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees: the left edge is the top
    path = tmp_path / "rotated.jpg"
    image.save(path, exif=exif)
    image_paths = [path, tmp_path / "other.jpg"]
    writer = OverlayWriter(tmp_path / "out", image_paths, FORMATS)
    writer.write(path, make_caption(path))
    with Image.open(tmp_path / "out" / "rotated" / "02-red.png") as frame:
        assert frame.size == (1000, 1600), "frames have the full resolution"
    for small, size in ((read_image(tmp_path / "out" / "rotated.html"), (750, 1200)), (None, (175, 280))):
        with small or Image.open(tmp_path / "out" / "thumbnails" / "rotated.jpg") as small_image:
            assert small_image.size == size
            red, green, _ = small_image.getpixel((size[0] // 2, size[1] // 10))
            assert red > 200
            assert green < 60
            assert min(small_image.getpixel((size[0] // 2, size[1] // 2))) > 200


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"formats": ["png", "jpg"]}, "unknown overlay format 'jpg'; choose from html, png, gif, frames, npz"),
        ({"formats": [""]}, "unknown overlay format ''"),
        ({"colormap": "jet"}, "unknown colormap 'jet'"),
        ({"opacity": 2.0}, r"opacity must be in \[0, 1\], got 2\.0"),
        ({"panel_width": -1}, r"panel_width must be in \[16, 4000\] pixels, got -1"),
    ],
)
def test_invalid_settings_create_no_directory(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptioningError, match=message):
        OverlayWriter(tmp_path / "out", [Path("a.jpg")], **settings)
    assert not (tmp_path / "out").exists()


def test_file_names_are_unique(photo: Path, tmp_path: Path) -> None:
    image_paths = [Path(name) for name in ("x/a.jpg", "y/A.png", "a.gif", "index.jpg", "thumbnails.png", "a-2.jpg")]
    writer = OverlayWriter(tmp_path / "out", image_paths, ["html", "frames"])
    pages = [Path(writer.write(path, make_caption(photo, "dog"))["html"]).name for path in image_paths]
    assert len({page.lower() for page in pages}) == 6
    assert pages[:3] == ["a.html", "A-2.html", "a-3.html"]
    assert pages[3:5] == ["index-2.html", "thumbnails-2.html"]
    assert writer.close() == tmp_path / "out" / "index.html"
    listed = re.findall(r'<span class="name"[^>]*>(.*?)</span>', (tmp_path / "out" / "index.html").read_text())
    assert listed == [str(path) for path in image_paths], "with the directories, which differ"
    for url in re.findall(r'(?:href|src)="(.*?)"', (tmp_path / "out" / "index.html").read_text()):
        assert (tmp_path / "out" / html.unescape(url)).is_file()


def test_frame_names_are_safe(photo: Path, tmp_path: Path) -> None:
    words = f"../../x {MARKUP} собака " + "a" * 300
    OverlayWriter(tmp_path / "out", [photo], ["frames"]).write(photo, make_caption(photo, words))
    names = sorted(path.name for path in (tmp_path / "out" / "photo").iterdir())
    assert names[0] == "01-x.png"
    assert names[2] == "03-собака.png"
    assert all(re.fullmatch(r"[\w-]{1,50}\.png", name) for name in names)


def test_full_disk_leaves_no_partial_file(photo: Path, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("requires /dev/full")
    image_paths = [photo, tmp_path / "second.jpg"]
    writer = OverlayWriter(tmp_path / "out", image_paths, ["png", "gif"])
    (tmp_path / "out" / "photo.gif.partial").symlink_to("/dev/full")
    with pytest.raises(CaptioningError, match=r"photo\.gif: cannot write the file \(No space left on device\)"):
        writer.write(photo, make_caption(photo))
    writer.write(image_paths[1], make_caption(photo))
    writer.close()
    assert list_files(tmp_path / "out") == [
        *("index.html", "photo.png", "second.gif", "second.png", "thumbnails/second.jpg")
    ]
    page = (tmp_path / "out" / "index.html").read_text()
    assert "second.jpg" in page
    assert "photo.jpg" not in page


def test_output_path_is_blocked(photo: Path, tmp_path: Path) -> None:
    writer = OverlayWriter(tmp_path / "out", [photo], ["html"])
    (tmp_path / "out" / "photo.html").mkdir()
    with pytest.raises(CaptioningError, match=r"photo\.html: exists and was not written by captioning"):
        writer.write(photo, make_caption(photo))
    assert list_files(tmp_path / "out") == []
    with pytest.raises(CaptioningError, match="cannot create the output directory"):
        OverlayWriter(photo, [photo])


def test_missing_image_is_named(photo: Path, tmp_path: Path) -> None:
    writer = OverlayWriter(tmp_path / "out", [photo], ["png"])
    caption = make_caption(photo)
    os.remove(photo)
    with pytest.raises(CaptioningError, match=r"photo\.jpg: no such file"):
        writer.write(photo, caption)


def test_page_works_offline_from_disk(browser_page: Any, photo: Path, tmp_path: Path) -> None:
    """Arrow keys, hovering and the choice of another caption change what the page shows."""
    path = tmp_path / f"{MARKUP.replace('/', '')}'\".jpg"
    caption = make_caption(photo, f"a {MARKUP} dog", alternatives=(make_caption(photo, "two cats"),))
    page = Path(OverlayWriter(tmp_path / "out", [path], ["html"]).write(path, caption)["html"])
    browser_page.context.set_offline(True)
    browser_page.emulate_media(reduced_motion="reduce")  # no transitions
    browser_page.goto(page.as_uri())
    browser_page.wait_for_function("document.querySelector('img').naturalWidth > 0")
    assert browser_page.evaluate("window.broken") is None
    assert browser_page.title() == path.name
    canvases = [browser_page.evaluate("document.querySelector('canvas').toDataURL()")]
    for word in ("A", MARKUP):  # no element has the focus yet
        browser_page.keyboard.press("ArrowRight")
        assert browser_page.locator(".viewer-word:focus").inner_text() == word
    browser_page.keyboard.press("Escape")
    for word in ("dog", MARKUP):
        browser_page.locator(".viewer-word", has_text=word).hover()
        canvases.append(browser_page.evaluate("document.querySelector('canvas').toDataURL()"))
    assert len(set(canvases)) == 3
    browser_page.get_by_role("tab", name="two cats").click()
    assert browser_page.locator(".viewer-word").all_inner_texts() == ["Two", "cats"]
