"""Self-contained HTML pages, which work from disk without a network: one per image, and a gallery of many images."""

import base64
import functools
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any, NamedTuple
from urllib.parse import quote

from captioning.visualization import colormaps, legend
from captioning.visualization.words import FUNCTION_WORDS

VIEWER_MODULES = ("constants.js", "dom.js", "attention.js", "map_canvas.js", "viewer.js")  # each imports earlier ones
_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)


class Neighbors(NamedTuple):
    """Paths of the pages that the page of an image links to; None where there is none."""

    gallery: str | None
    previous: str | None
    next: str | None


def image_page(
    title: str,
    jpeg: bytes,
    captions: Sequence[Mapping[str, Any]],
    colors: Mapping[str, Any],
    neighbors: Neighbors | None = None,
) -> str:
    """Render the page of one image, with the image, captions, style and scripts embedded.

    Args:
        title: name of the image.
        jpeg: the encoded image.
        captions: results of :meth:`captioning.Caption.to_dict`, best first.
        colors: initial ``colormap`` and ``opacity``.
        neighbors: pages to link to.
    """
    image = "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
    return _substitute(
        "image.html",
        title=html.escape(title),
        style=read_asset("viewer.css"),
        navigation=_navigation(neighbors),
        script=bundle(VIEWER_MODULES),
        content=to_script_json({"image": image, "captions": captions, **colors}),
    )


def error_page(title: str, message: str, neighbors: Neighbors) -> str:
    """Render the page of an image that could not be captioned."""
    return _substitute(
        "error.html", title=html.escape(title), message=html.escape(message), navigation=_navigation(neighbors)
    )


def _substitute(asset: str, **values: str) -> str:
    return Template(read_asset(asset)).substitute(page_style=read_asset("page.css"), **values)


def _navigation(neighbors: Neighbors | None) -> str:
    if neighbors is None or neighbors.gallery is None:
        return ""
    links = [
        ("All images", neighbors.gallery, "up"),
        ("Previous", neighbors.previous, "prev"),
        ("Next", neighbors.next, "next"),
    ]
    items = [f'<a href="{to_url(path)}" rel="{relation}">{text}</a>' for text, path, relation in links if path]
    return f'<nav aria-label="Images">{" ".join(items)}</nav>'


def constants_module() -> str:
    """Return the JavaScript module with the values that Python and the browser share."""
    constants = {
        "COLORMAPS": colormaps.COLORMAPS,
        "DARK_SPOTLIGHT": colormaps.DARK_SPOTLIGHT,
        "DARK_LUMINANCE": colormaps.DARK_LUMINANCE,
        "DEFAULT_OPACITY": colormaps.DEFAULT_OPACITY,
        "COLORMAP_LEGENDS": legend.COLORMAP_LEGENDS,
        "OUTLINE_LEGEND": legend.OUTLINE,
        "LOCATION_LEGEND": legend.SINGLE_LOCATION,
        "FUNCTION_WORDS": sorted(FUNCTION_WORDS),
    }
    return "".join(f"export const {name} = {json.dumps(value)};\n" for name, value in constants.items())


def bundle(names: Sequence[str]) -> str:
    """Concatenate JavaScript modules into one, since a page that is opened from disk cannot import files."""
    modules = (_IMPORT.sub("", script(name)) for name in names)
    return "\n".join(re.sub(r"^export ", "", module, flags=re.MULTILINE) for module in modules)


def script(name: str) -> str:
    """Return the source of a JavaScript module of the viewer."""
    return constants_module() if name == "constants.js" else read_asset(name)


def to_script_json(value: Any) -> str:
    """Serialize a value for a script element, which no string in it can close."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def to_url(path: str) -> str:
    return html.escape(quote(path))


@functools.cache
def read_asset(name: str) -> str:
    return resources.files("captioning.visualization").joinpath("assets", name).read_text("utf-8")
