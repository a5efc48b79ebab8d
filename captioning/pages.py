"""Captions → pages that need no server and no network: one of a picture, and a gallery of many."""

import base64
import functools
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any
from urllib.parse import quote


def picture_page(
    title: str, jpeg: bytes, captions: Sequence[Mapping[str, Any]], colours: Sequence[Sequence[float]]
) -> str:
    """A page that holds all it shows.

    Args:
        title: the picture's name.
        jpeg: the photo.
        captions: as :meth:`captioning.Caption.describe` gives them, best first.
        colours: as :func:`captioning.overlay.colour_table` gives them.
    """
    content = {
        "photo": "data:image/jpeg;base64," + base64.b64encode(jpeg).decode(),
        "captions": captions,
        "colours": colours,
    }
    return Template(_source("picture.html")).substitute(
        title=html.escape(title),
        page_style=_source("page.css"),
        style=_source("viewer.css"),
        script=_source("viewer.js"),
        content=json.dumps(content, ensure_ascii=False).replace("<", "\\u003c"),  # or a word could end the script
    )


def gallery_page(cards: Sequence[str]) -> str:
    """All cards on one page, to search in."""
    return Template(_source("gallery.html")).substitute(
        count=len(cards),
        page_style=_source("page.css"),
        style=_source("gallery.css"),
        script=_source("gallery.js"),
        cards="\n".join(cards),
    )


def card(
    title: str,
    words: Iterable[tuple[str, str | None]],
    thumbnail: str,
    size: tuple[int, int],
    links: Mapping[str, str],
) -> str:
    """A picture in the gallery.

    Args:
        title: the picture's name.
        words: of its caption, each with the path of a picture of its own, if there is one.
        thumbnail: path of a small picture.
        size: of the small picture, width and height: the page keeps the room until it is loaded.
        links: text → path of what else there is; the picture itself leads to the first.
    """
    sentence = " ".join(_link(path, word) if path else html.escape(word) for word, path in words)
    picture = f'<img src="{_address(thumbnail)}" width="{size[0]}" height="{size[1]}" alt="" loading="lazy">'
    first = next(iter(links.values()), None)
    if first:
        # The links below say the same in words: one stop less for the keyboard.
        picture = f'<a href="{_address(first)}" tabindex="-1" aria-hidden="true">{picture}</a>'
    listed = " ".join(_link(path, text) for text, path in links.items())
    return (
        f'<li>{picture}<p class="caption" dir="auto" lang="">{sentence}</p>'
        f'<p class="name" dir="auto">{html.escape(title)}</p><p class="links">{listed}</p></li>'
    )


def _link(path: str, text: str) -> str:
    return f'<a href="{_address(path)}">{html.escape(text)}</a>'


def _address(path: str) -> str:
    return html.escape(quote(path))


@functools.cache
def _source(name: str) -> str:
    """A file of the package's folder ``web``."""
    return resources.files("captioning.web").joinpath(name).read_text("utf-8")
