import base64
import dataclasses
import html
import io
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from captioning.captioner import Caption, Captioner
from captioning.errors import CaptioningError
from captioning.export import FORMATS, Export
from captioning.images import Box

NASTY = "</script><script>window.broken=1</script>"


def make_caption(picture: Any, words: str = "a red dog", **changes: Any) -> Caption:
    """Each word looks at a corner of its own."""
    said = words.split()
    maps = np.full((len(said), 4, 4), 0.01, np.float32)
    for number in range(len(said)):
        maps[number, 3 * (number % 2), 3 * (number // 2 % 2)] = 0.85
    chances = [0.9, 0.5, 0.1, 0.8, 0.7][: len(said) + 1]
    caption = Caption(said, chances, maps, picture, Box(0, 0, 1, 1))
    return dataclasses.replace(caption, **changes)


def content_of(page: Path) -> dict[str, Any]:
    return json.loads(re.search(r'<script id="content"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)[1])


def photo_in(page: Path) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(content_of(page)["photo"].partition(",")[2])))


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_every_format(photo: Path, tmp_path: Path) -> None:
    export = Export(tmp_path / "new" / "out", [photo], FORMATS)
    files = export.write(photo, make_caption(photo))
    assert export.close() is None, "one picture needs no gallery"
    folder = tmp_path / "new" / "out"
    words = ["photo/01-a.png", "photo/02-red.png", "photo/03-dog.png"]
    others = ["photo.gif", "photo.html", "photo.json", "photo.npz", "photo.png"]
    assert files_in(folder) == sorted([*words, *others])
    assert files == {
        **{name: str(folder / f"photo.{name}") for name in ("html", "png", "gif", "npz")},
        "words": str(folder / "photo"),
    }
    with Image.open(folder / "photo.png") as sheet, Image.open(folder / "photo/02-red.png") as word:
        assert sheet.width == 4 * 200 + 5 * 12
        assert word.size == (120, 80)
    with Image.open(folder / "photo.gif") as animation:
        assert animation.n_frames == 4
        assert animation.info["loop"] == 0


def test_only_the_formats_asked_for(photo: Path, tmp_path: Path) -> None:
    for name, expected in (("gif", ["photo.gif"]), ("npz", ["photo.json", "photo.npz"])):
        folder = tmp_path / name
        Export(folder, [photo], [name]).write(photo, make_caption(photo))
        assert files_in(folder) == expected


def test_numbers(photo: Path, tmp_path: Path) -> None:
    caption = make_caption(photo, others=(make_caption(photo, "two cats"),))
    Export(tmp_path / "out", [photo], ["npz"]).write(photo, caption)
    with np.load(tmp_path / "out" / "photo.npz") as maps:
        np.testing.assert_array_equal(maps["maps"], caption.maps)
        np.testing.assert_array_equal(maps["maps_1"], caption.others[0].maps)
        assert len(maps) == 2
    described = json.loads((tmp_path / "out" / "photo.json").read_text())
    assert described == {"image": "photo.jpg", **caption.describe()}


def test_a_page_holds_all_it_shows(photo: Path, tmp_path: Path) -> None:
    caption = make_caption(photo, others=(make_caption(photo, "two cats"),), field=(0.3, 0.3))
    Export(tmp_path / "out", [photo], ["html"], "heat", 0.5).write(photo, caption)
    page = tmp_path / "out" / "photo.html"
    content = content_of(page)
    described = caption.describe()
    others = described.pop("others")
    assert content["captions"] == [described, *others]
    assert content["colours"][0] == [0, 0, 0, 0.5]
    text = page.read_text()
    assert not re.search(r"""(src|href)=["']?(?!data:)|https?://|@import|url\(""", text.replace("http-equiv", ""))
    assert len(text) - len(content["photo"]) < 400_000


def test_a_hard_look_is_told_as_one_place(hard_captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    Export(tmp_path / "out", [photo], FORMATS).write(photo, hard_captioner(photo))
    (caption,) = content_of(tmp_path / "out" / "photo.html")["captions"]
    assert all(0.1 < side < 1 for side in caption["field"])
    for word in caption["words"]:
        assert sorted(weight for row in word["map"] for weight in row) == [0] * 63 + [1]
    with Image.open(tmp_path / "out" / "photo.png") as sheet:
        colours = {colour for _, colour in sheet.convert("RGB").getcolors(2**24)}
    assert (255, 213, 74) in colours, "its cell is drawn"


def test_photos_are_upright_and_large_ones_shrunk(tmp_path: Path) -> None:
    image = Image.new("RGB", (1600, 1000), "white")
    image.paste("red", (0, 0, 400, 1000))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the left edge is the top
    picture = tmp_path / "turned.jpg"
    image.save(picture, exif=exif)
    pictures = [picture, tmp_path / "other.jpg"]
    export = Export(tmp_path / "out", pictures, FORMATS)
    export.write(picture, make_caption(picture))
    with Image.open(tmp_path / "out" / "turned" / "02-red.png") as word:
        assert word.size == (1000, 1600), "a word's picture has all the pixels of the photo"
    for small, size in ((photo_in(tmp_path / "out" / "turned.html"), (750, 1200)), (None, (175, 280))):
        with small or Image.open(tmp_path / "out" / "thumbnails" / "turned.jpg") as shown:
            assert shown.size == size
            red, green, _ = shown.getpixel((size[0] // 2, size[1] // 10))
            assert red > 200
            assert green < 60
            assert min(shown.getpixel((size[0] // 2, size[1] // 2))) > 200


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"formats": ["png", "jpg"]}, "unknown format 'jpg'; choose from html, png, gif, words, npz"),
        ({"formats": [""]}, "unknown format ''"),
        ({"colours": "jet"}, "unknown colours 'jet'"),
        ({"opacity": 2.0}, r"opacity 2\.0: take 0"),
        ({"panel_width": -1}, "panel width -1: take 16"),
    ],
)
def test_bad_settings_are_told_before_anything_is_made(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptioningError, match=message):
        Export(tmp_path / "out", [Path("a.jpg")], **settings)
    assert not (tmp_path / "out").exists()


def test_names_do_not_clash(photo: Path, tmp_path: Path) -> None:
    pictures = [Path(name) for name in ("x/a.jpg", "y/A.png", "a.gif", "index.jpg", "thumbnails.png", "a-2.jpg")]
    export = Export(tmp_path / "out", pictures, ["html", "words"])
    pages = [Path(export.write(picture, make_caption(photo, "dog"))["html"]).name for picture in pictures]
    assert len({page.lower() for page in pages}) == 6
    assert pages[:3] == ["a.html", "A-2.html", "a-3.html"]
    assert pages[3:5] == ["index-2.html", "thumbnails-2.html"]
    assert export.close() == tmp_path / "out" / "index.html"
    listed = re.findall(r'<p class="name"[^>]*>(.*?)</p>', (tmp_path / "out" / "index.html").read_text())
    assert listed == [picture.name for picture in pictures]
    for address in re.findall(r'(?:href|src)="(.*?)"', (tmp_path / "out" / "index.html").read_text()):
        assert (tmp_path / "out" / html.unescape(address)).is_file()


def test_words_make_safe_file_names(photo: Path, tmp_path: Path) -> None:
    words = f"../../x {NASTY} собака " + "a" * 300
    Export(tmp_path / "out", [photo], ["words"]).write(photo, make_caption(photo, words))
    names = sorted(path.name for path in (tmp_path / "out" / "photo").iterdir())
    assert names[0] == "01-x.png"
    assert names[2] == "03-собака.png"
    assert all(re.fullmatch(r"[\w-]{1,50}\.png", name) for name in names)


def test_a_full_disk_leaves_nothing_half_written(photo: Path, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this machine")
    pictures = [photo, tmp_path / "second.jpg"]
    export = Export(tmp_path / "out", pictures, ["png", "gif"])
    (tmp_path / "out" / "photo.gif.unfinished").symlink_to("/dev/full")
    with pytest.raises(CaptioningError, match=r"photo\.gif: cannot be written \(No space left on device\)"):
        export.write(photo, make_caption(photo))
    export.write(pictures[1], make_caption(photo))
    export.close()
    assert files_in(tmp_path / "out") == [
        *("index.html", "photo.png", "second.gif", "second.png", "thumbnails/second.jpg")
    ]
    page = (tmp_path / "out" / "index.html").read_text()
    assert "second.jpg" in page
    assert "photo.jpg" not in page


def test_a_folder_in_the_way(photo: Path, tmp_path: Path) -> None:
    export = Export(tmp_path / "out", [photo], ["html"])
    (tmp_path / "out" / "photo.html").mkdir()
    with pytest.raises(CaptioningError, match=r"photo\.html: cannot be written"):
        export.write(photo, make_caption(photo))
    assert files_in(tmp_path / "out") == []
    with pytest.raises(CaptioningError, match="cannot be made a folder"):
        Export(photo, [photo])


def test_a_picture_that_is_gone_is_named(photo: Path, tmp_path: Path) -> None:
    export = Export(tmp_path / "out", [photo], ["png"])
    caption = make_caption(photo)
    os.remove(photo)
    with pytest.raises(CaptioningError, match=r"photo\.jpg: no such file"):
        export.write(photo, caption)


def test_a_page_from_disk_without_a_network(browser_page: Any, photo: Path, tmp_path: Path) -> None:
    """What a visitor does: walk with the arrow keys, point at a word, choose another caption."""
    picture = tmp_path / f"{NASTY.replace('/', '')}'\".jpg"
    caption = make_caption(photo, f"a {NASTY} dog", others=(make_caption(photo, "two cats"),))
    page = Path(Export(tmp_path / "out", [picture], ["html"]).write(picture, caption)["html"])
    browser_page.context.set_offline(True)
    browser_page.emulate_media(reduced_motion="reduce")  # what is drawn is there at once
    browser_page.goto(page.as_uri())
    browser_page.wait_for_function("document.querySelector('img').naturalWidth > 0")
    assert browser_page.evaluate("window.broken") is None
    assert browser_page.title() == picture.name
    drawn = [browser_page.evaluate("document.querySelector('canvas').toDataURL()")]
    for word in ("a", NASTY):  # though nothing has the focus yet
        browser_page.keyboard.press("ArrowRight")
        assert browser_page.locator(".viewer-word:focus").inner_text() == word
    browser_page.keyboard.press("Escape")
    for word in ("dog", NASTY):
        browser_page.locator(".viewer-word", has_text=word).hover()
        drawn.append(browser_page.evaluate("document.querySelector('canvas').toDataURL()"))
    assert len(set(drawn)) == 3
    browser_page.get_by_role("tab", name="two cats").click()
    assert browser_page.locator(".viewer-word").all_inner_texts() == ["two", "cats"]


def test_a_gallery_of_a_thousand(browser_page: Any, photo: Path, tmp_path: Path) -> None:
    """Opens fast, and finds what is searched for in captions and names."""
    pictures = [tmp_path / f"{number:04}.jpg" for number in range(998)]
    pictures += [tmp_path / "Ünïcode & <b>.jpg", tmp_path / "last #1?.jpg"]
    export = Export(tmp_path / "out", pictures, ["npz"])
    for number, picture in enumerate(pictures):
        words = f"a {'red' if number % 10 else 'blue'} dog runs"
        export.write(picture, make_caption(photo, words if number < 999 else NASTY))
    index = export.close()
    assert index.stat().st_size < 1_000_000
    browser_page.context.set_offline(True)
    begin = time.perf_counter()
    browser_page.goto(index.as_uri(), wait_until="load")
    assert time.perf_counter() - begin < 5  # 0.3 s were measured
    loaded = "Array.from(document.images).filter(image => image.naturalWidth > 0).length"
    assert 0 < browser_page.evaluate(loaded) < 500, "thumbnails out of sight wait"

    def found(query: str) -> int:
        browser_page.fill("#query", query)
        return browser_page.locator("li:visible").count()

    visible = {
        query: found(query) for query in ("", "blue", "DOG blue", "0123", "ünïcode <b>", "</script>", "elephant")
    }
    assert list(visible.values()) == [1000, 100, 100, 1, 1, 1, 0]
    assert browser_page.inner_text("#count") == "0 of 1000"
    assert browser_page.evaluate("window.broken") is None
    found("last")
    browser_page.wait_for_function("document.querySelector('li:not([hidden]) img').naturalWidth > 0")
    links = browser_page.locator("li:visible a").evaluate_all("all => all.map(link => link.href)")
    assert links
    assert all(link.endswith("/last%20%231%3F.npz") for link in links)
