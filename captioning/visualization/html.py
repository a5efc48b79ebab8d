"""Self-contained HTML pages, which work from disk without a network: one per image, and a gallery of many images."""

import base64
import functools
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any
from urllib.parse import quote


def image_page(
    title: str, jpeg: bytes, captions: Sequence[Mapping[str, Any]], colormap_stops: Sequence[Sequence[float]]
) -> str:
    """Render the page of one image, with the image, captions, style and script embedded.

    Args:
        title: name of the image.
        jpeg: the encoded image.
        captions: results of :meth:`captioning.Caption.to_dict`, best first.
        colormap_stops: result of :func:`captioning.visualization.overlay.colormap_stops`.
    """
    content = {
        "image": "data:image/jpeg;base64," + base64.b64encode(jpeg).decode(),
        "captions": captions,
        "colormapStops": colormap_stops,
    }
    return Template(_read_asset("image.html")).substitute(
        title=html.escape(title),
        page_style=_read_asset("page.css"),
        style=_read_asset("viewer.css"),
        script=_read_asset("viewer.js"),
        content=json.dumps(content, ensure_ascii=False).replace("<", "\\u003c"),  # a word must not close the script tag
    )


def gallery_page(cards: Sequence[str]) -> str:
    """Render the page of all cards, with a search field."""
    return Template(_read_asset("gallery.html")).substitute(
        count=len(cards),
        page_style=_read_asset("page.css"),
        style=_read_asset("gallery.css"),
        script=_read_asset("gallery.js"),
        cards="\n".join(cards),
    )


def gallery_card(
    title: str,
    words: Iterable[tuple[str, str | None]],
    thumbnail: str,
    size: tuple[int, int],
    links: Mapping[str, str],
) -> str:
    """Render the list item of one image in the gallery.

    Args:
        title: name of the image.
        words: words of the caption, each with the path of its frame or None.
        thumbnail: path of the thumbnail.
        size: width and height of the thumbnail. The page reserves this space before the thumbnail is loaded.
        links: link text → path of the exported files. The thumbnail links to the first.
    """
    sentence = " ".join(_link(path, word) if path else html.escape(word) for word, path in words)
    image = f'<img src="{_url(thumbnail)}" width="{size[0]}" height="{size[1]}" alt="" loading="lazy">'
    first = next(iter(links.values()), None)
    if first:
        # Skipped by the keyboard and by screen readers, since the links below lead to the same file.
        image = f'<a href="{_url(first)}" tabindex="-1" aria-hidden="true">{image}</a>'
    file_links = " ".join(_link(path, text) for text, path in links.items())
    return (
        f'<li>{image}<p class="caption" dir="auto" lang="">{sentence}</p>'
        f'<p class="name" dir="auto">{html.escape(title)}</p><p class="links">{file_links}</p></li>'
    )


def _link(path: str, text: str) -> str:
    return f'<a href="{_url(path)}">{html.escape(text)}</a>'


def _url(path: str) -> str:
    return html.escape(quote(path))


@functools.cache
def _read_asset(name: str) -> str:
    return resources.files("captioning.visualization").joinpath("assets", name).read_text("utf-8")
