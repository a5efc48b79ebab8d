"""The gallery page of exported captions: a searchable, sortable list of images."""

import html
from collections.abc import Mapping, Sequence
from string import Template
from typing import TYPE_CHECKING

from captioning.visualization.html import read_asset, to_url
from captioning.visualization.legend import percent
from captioning.visualization.words import sentence_case

if TYPE_CHECKING:
    from captioning.caption import Caption

_LINK_TEXTS = {"html": "Open", "png": "Panels", "gif": "Animation", "frames": "Words", "npz": "Data"}


def gallery_page(cards: Sequence[str]) -> str:
    """Render the page of all cards, with a search field and a choice of the order."""
    return Template(read_asset("gallery.html")).substitute(
        count=len(cards),
        page_style=read_asset("page.css"),
        style=read_asset("gallery.css"),
        script=read_asset("gallery.js"),
        cards="\n".join(cards),
    )


def card(
    title: str,
    caption: "Caption",
    thumbnail: str,
    size: tuple[int, int],
    links: Mapping[str, str],
    frames: Sequence[str] = (),
) -> str:
    """Render the list item of one image.

    Args:
        title: name of the image.
        caption: its caption.
        thumbnail: path of the thumbnail.
        size: width and height of the thumbnail. The page reserves this space before the thumbnail is loaded.
        links: format → path of the exported file. The thumbnail links to the first.
        frames: path of the frame of each word, which the words link to; empty without frames.
    """
    words = [html.escape(word) for word in sentence_case(caption.words)]
    if frames:
        words = [f'<a href="{to_url(path)}">{word}</a>' for word, path in zip(words, frames, strict=True)]
    image = f'<img src="{to_url(thumbnail)}" width="{size[0]}" height="{size[1]}" alt="" loading="lazy">'
    first = next(iter(links.values()), None)
    if first:
        # Skipped by the keyboard and by screen readers, since the links below lead to the same file.
        image = f'<a href="{to_url(first)}" tabindex="-1" aria-hidden="true">{image}</a>'
    name = html.escape(title)
    file_links = " ".join(
        f'<a href="{to_url(path)}" aria-label="{_LINK_TEXTS[kind]}: {name}">{_LINK_TEXTS[kind]}</a>'
        for kind, path in links.items()
    )
    return (
        f'<li data-score="{caption.score:.4f}">{image}<p class="caption" dir="auto" lang="">{" ".join(words)}</p>'
        f'<p class="meta"><span class="name" dir="auto">{name}</span> '
        f'<span class="score">score {percent(caption.score)}</span></p><p class="links">{file_links}</p></li>'
    )


def failed_card(title: str, message: str) -> str:
    """Render the list item of an image that could not be captioned."""
    return (
        f'<li class="failed" data-score="-1"><p class="caption" dir="auto">{html.escape(message)}</p>'
        f'<p class="meta"><span class="name" dir="auto">{html.escape(title)}</span></p></li>'
    )
