"""The gallery of an export: links, failures, search and sorting."""

import re
import time
from pathlib import Path
from typing import Any

from captioning.utils.errors import CaptioningError
from captioning.visualization.export import OverlayWriter
from captioning.visualization.formats import FORMATS
from tests.visualization.test_export import MARKUP, make_caption


def test_gallery_links_in_words_and_lists_failures(photo: Path, tmp_path: Path) -> None:
    image_paths = [photo, tmp_path / "broken.jpg", tmp_path / "last.jpg"]
    writer = OverlayWriter(tmp_path / "out", image_paths, FORMATS)
    writer.write(photo, make_caption(photo))
    writer.write_failure(image_paths[1], CaptioningError("broken.jpg: cannot be read as an <image>"))
    writer.write(image_paths[2], make_caption(photo, "dog"))
    text = writer.close().read_text()
    for name, target in (("Open", "photo.html"), ("Panels", "photo.png"), ("Animation", "photo.gif"),
                         ("Words", "photo/01-a.png"), ("Data", "photo.npz")):  # fmt: skip
        assert f'<a href="{target}" aria-label="{name}: photo.jpg">{name}</a>' in text
    assert f"score {100 * make_caption(photo).score:.0f} %" in text
    assert "broken.jpg: cannot be read as an &lt;image&gt;" in text
    links = {
        path.name: re.findall(
            r'<a href="(.*?)" rel="(.*?)"', (tmp_path / "out" / path.with_suffix(".html").name).read_text()
        )
        for path in image_paths
    }
    assert links == {
        "photo.jpg": [("index.html", "up"), ("broken.html", "next")],
        "broken.jpg": [("index.html", "up"), ("photo.html", "prev"), ("last.html", "next")],
        "last.jpg": [("index.html", "up"), ("broken.html", "prev")],
    }


def test_titles_contain_the_directories_that_differ(photo: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "rome" / "1.jpg", tmp_path / "paris" / "1.jpg"]
    writer = OverlayWriter(tmp_path / "out", paths, ["html"])
    for path in paths:
        writer.write(path, make_caption(photo))
    text = writer.close().read_text()
    assert "rome/1.jpg" in text
    assert "paris/1.jpg" in text


def test_gallery_of_1000_images(browser_page: Any, photo: Path, tmp_path: Path) -> None:
    """The gallery opens fast, and its search covers captions and file names."""
    image_paths = [tmp_path / f"{index:04}.jpg" for index in range(998)]
    image_paths += [tmp_path / "Ünïcode & <b>.jpg", tmp_path / "last #1?.jpg"]
    writer = OverlayWriter(tmp_path / "out", image_paths, ["npz"])
    for index, path in enumerate(image_paths):
        words = f"a {'red' if index % 10 else 'blue'} dog runs"
        writer.write(path, make_caption(photo, words if index < 999 else MARKUP))
    gallery = writer.close()
    assert gallery.stat().st_size < 1_000_000
    browser_page.context.set_offline(True)
    start = time.perf_counter()
    browser_page.goto(gallery.as_uri(), wait_until="load")
    assert time.perf_counter() - start < 5  # usually 0.3 s
    loaded = "Array.from(document.images).filter(image => image.naturalWidth > 0).length"
    assert 0 < browser_page.evaluate(loaded) < 500, "thumbnails outside the viewport are not loaded"

    def num_matches(query: str) -> int:
        browser_page.fill("#query", query)
        return browser_page.locator("li:visible").count()

    visible = {
        query: num_matches(query) for query in ("", "blue", "DOG blue", "0123", "ünïcode <b>", "</script>", "elephant")
    }
    assert list(visible.values()) == [1000, 100, 100, 1, 1, 1, 0]
    assert browser_page.inner_text("#count") == "0 of 1000"
    browser_page.fill("#query", "")
    browser_page.select_option("#order", "name")
    assert browser_page.locator("li .name").first.text_content() == "0000.jpg"
    assert browser_page.locator("li .name").last.text_content() == "\u00dcn\u00efcode & <b>.jpg"
    browser_page.select_option("#order", "lowest")
    scores = browser_page.locator("li").evaluate_all("all => all.map(card => Number(card.dataset.score))")
    assert scores == sorted(scores)
    assert browser_page.evaluate("window.broken") is None
    num_matches("last")
    browser_page.wait_for_function("document.querySelector('li:not([hidden]) img').naturalWidth > 0")
    links = browser_page.locator("li:visible a").evaluate_all("all => all.map(link => link.href)")
    assert links
    assert all(link.endswith("/last%20%231%3F.npz") for link in links)
