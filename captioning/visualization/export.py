"""Export of captions with attention maps into a directory: images, HTML pages, arrays, and a gallery of all images."""

import contextlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from captioning.preprocessing.download import is_url
from captioning.utils.atomic_io import atomic_write
from captioning.utils.errors import CaptioningError
from captioning.utils.output_manifest import OutputManifest
from captioning.visualization import gallery, html, sheet
from captioning.visualization.colormaps import DEFAULT_OPACITY, colormap_stops
from captioning.visualization.encoding import encode_jpeg, encode_png, fit_within, write_png_rows
from captioning.visualization.formats import FORMATS, check_formats
from captioning.visualization.overlay import AttentionRenderer

if TYPE_CHECKING:
    from captioning.caption import Caption

MAX_PAGE_IMAGE_SIDE = 1200  # pixels of the longer side of the image in a page
_THUMBNAIL_SIDE = 280
_THUMBNAIL_DIR = "thumbnails"
_GALLERY_NAME = "index"
_FIRST_FRAME_MS, _FRAME_MS = 1200, 800


class _ExportItem(NamedTuple):
    """A caption and the name of its files."""

    path: Path
    name: str
    title: str
    image: Image.Image
    caption: "Caption"
    renderer: AttentionRenderer


class OverlayWriter:
    """Writes captions into a directory, each under the name of its image, and a gallery if there are several images.

    Args:
        output_dir: created if it does not exist. Files that captioning wrote there earlier are replaced.
        image_paths: all images that will be written, which makes file names unique.
        formats: some of ``FORMATS``. ``png`` is one sheet with a panel per word, ``frames`` is a directory with one
            full-size PNG per word, ``gif`` is an animation over the words, ``html`` is a self-contained page, ``npz``
            holds the attention maps as arrays, with a JSON file beside it.
        colormap, opacity, panel_width: see :meth:`captioning.Caption.overlay`.
        has_gallery: whether to write an index page; by default if there are several images.
        overwrite: replace files that captioning did not write as well; by default they raise CaptioningError.
    """

    def __init__(
        self,
        output_dir: Path,
        image_paths: Sequence[Path],
        formats: Sequence[str] = ("png",),
        colormap: str = "spotlight",
        opacity: float = DEFAULT_OPACITY,
        panel_width: int = sheet.DEFAULT_PANEL_WIDTH,
        has_gallery: bool | None = None,
        overwrite: bool = False,
    ) -> None:
        check_formats(formats)
        sheet.check_panel_width(panel_width)
        colormap_stops(colormap, opacity)  # raises an error before the directory is created
        self._colormap, self._opacity, self._panel_width = colormap, opacity, panel_width
        self.output_dir = output_dir
        self._formats = [name for name in FORMATS if name in formats]
        self._has_gallery = len(set(image_paths)) > 1 if has_gallery is None else has_gallery
        self._names = _unique_names(image_paths, {_THUMBNAIL_DIR, _GALLERY_NAME} if self._has_gallery else set())
        self._cards: list[str] = []
        self._neighbors = _neighbors(self._names)
        self._titles = _titles(image_paths)
        _make_dir(output_dir)
        self._manifest = None if overwrite else OutputManifest(output_dir)

    def write(self, path: Path, caption: "Caption", title: str | None = None) -> dict[str, str]:
        """Write the overlays of one caption in all formats.

        Args:
            path: one of ``image_paths``.
            caption: caption of this image.
            title: heading of the page; by default the name of the image, with its directories if those differ.

        Returns:
            The path of the file of each format; for ``frames`` the path of their directory.
        """
        image = caption.open_image(self._min_decode_side())
        renderer = caption.renderer(self._colormap, self._opacity)
        item = _ExportItem(path, self._names[path], title or self._titles[path], image, caption, renderer)
        writers: dict[str, Callable[[_ExportItem], Path]] = {
            "html": self._write_page,
            "png": self._write_panels,
            "gif": self._write_animation,
            "frames": self._write_frames,
            "npz": self._write_npz,
        }
        files = {name: str(writers[name](item)) for name in self._formats}
        if self._has_gallery:
            self._cards.append(self._write_card(item))
        return files

    def write_failure(self, path: Path, error: Exception) -> None:
        """List an image that cannot be captioned in the gallery, with its error."""
        if not self._has_gallery:
            return
        self._cards.append(gallery.failed_card(self._titles[path], str(error)))
        if "html" in self._formats:  # the pages of its neighbors link to it
            page = html.error_page(self._titles[path], str(error), self._neighbors[path])
            self._write(self.output_dir / f"{self._names[path]}.html", page.encode())

    def close(self) -> Path | None:
        """Write the gallery of all captions written so far and return its path; None without a gallery."""
        if not self._has_gallery:
            return None
        return self._write(self.output_dir / f"{_GALLERY_NAME}.html", gallery.gallery_page(self._cards).encode())

    def _min_decode_side(self) -> int | None:
        """Return the resolution that the formats require of the shorter image side; None for full resolution."""
        if "frames" in self._formats:
            return None
        sides = {"html": MAX_PAGE_IMAGE_SIDE, "png": self._panel_width, "gif": sheet.MAX_ANIMATION_SIDE}
        return max(_THUMBNAIL_SIDE, *(sides.get(name, 0) for name in self._formats))

    def _write_page(self, item: _ExportItem) -> Path:
        page = render_page(
            item.title, item.image, item.caption, self._colormap, self._opacity, self._neighbors[item.path]
        )
        return self._write(self.output_dir / f"{item.name}.html", page)

    def _write_panels(self, item: _ExportItem) -> Path:
        caption = item.caption
        panels = sheet.render_panels(
            item.image,
            caption.words,
            item.renderer,
            self._panel_width,
            probs=caption.token_probs,
            gates=caption.context_gates,
        )
        return self._write(self.output_dir / f"{item.name}.png", encode_png(panels))

    def _write_animation(self, item: _ExportItem) -> Path:
        frames = sheet.render_animation(item.image, item.caption.words, item.renderer)
        # Pillow dithers only with an explicit palette; without dithering, smooth gradients show banding.
        first, *rest = (frame.quantize(palette=frame.reduce(2).quantize()) for frame in frames)
        durations = [_FIRST_FRAME_MS, *[_FRAME_MS] * len(rest)]
        buffer = io.BytesIO()
        first.save(buffer, "GIF", save_all=True, append_images=rest, duration=durations, loop=0)
        return self._write(self.output_dir / f"{item.name}.gif", buffer.getvalue())

    def _write_frames(self, item: _ExportItem) -> Path:
        _make_dir(self.output_dir / item.name)
        caption = item.caption
        for index, (file, word) in enumerate(zip(_frame_files(item), caption.words, strict=True)):
            rows = sheet.render_frame_rows(item.image, word, caption.token_probs[index], item.renderer, index)
            with self._writing(self.output_dir / file) as temporary:
                write_png_rows(temporary, item.image.size, rows)
        return self.output_dir / item.name

    def _write_npz(self, item: _ExportItem) -> Path:
        """Write ``attention_maps`` of the caption and ``attention_maps_1``, ``attention_maps_2``, … of alternatives,
        and ``context_gates`` in the same way if the model has a context gate."""
        arrays: dict[str, Any] = {}
        for index, caption in enumerate((item.caption, *item.caption.alternatives)):
            suffix = f"_{index}" if index else ""
            arrays[f"attention_maps{suffix}"] = caption.attention_maps
            if caption.context_gates is not None:
                arrays[f"context_gates{suffix}"] = np.array(caption.context_gates, dtype=np.float32)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        fields = {"image": item.title, **item.caption.to_dict()}
        self._write(self.output_dir / f"{item.name}.json", json.dumps(fields, ensure_ascii=False).encode())
        return self._write(self.output_dir / f"{item.name}.npz", buffer.getvalue())

    def _write_card(self, item: _ExportItem) -> str:
        thumbnail = fit_within(item.image, _THUMBNAIL_SIDE)
        _make_dir(self.output_dir / _THUMBNAIL_DIR)
        path = f"{_THUMBNAIL_DIR}/{item.name}.jpg"
        self._write(self.output_dir / path, encode_jpeg(thumbnail, _THUMBNAIL_SIDE))
        frames = _frame_files(item) if "frames" in self._formats else []
        links = {name: f"{item.name}.{name}" for name in self._formats if name != "frames"}
        if frames:
            links["frames"] = frames[0]
        return gallery.card(item.title, item.caption, path, thumbnail.size, links, frames)

    def _write(self, path: Path, data: bytes) -> Path:
        with self._writing(path) as temporary:
            temporary.write_bytes(data)
        return path

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[Path]:
        """Yield a temporary path that replaces ``path`` at the end."""
        try:
            if self._manifest:
                self._manifest.claim(path)
            with atomic_write(path) as temporary:
                yield temporary
        except OSError as error:
            raise CaptioningError(
                f"{path}: cannot write the file ({error.strerror}); check free disk space and permissions"
            ) from None


def render_page(
    title: str,
    image: Image.Image,
    caption: "Caption",
    colormap: str = "spotlight",
    opacity: float = DEFAULT_OPACITY,
    neighbors: html.Neighbors | None = None,
) -> bytes:
    """Render the HTML page of an image.

    Args:
        title: heading of the page.
        image: embedded with at most :data:`MAX_PAGE_IMAGE_SIDE` pixels per side.
        caption: the caption and its alternatives.
        colormap, opacity: initial colors of the attention maps; see :meth:`captioning.Caption.overlay`.
        neighbors: pages that this one links to.
    """
    colormap_stops(colormap, opacity)  # raises an error for invalid values
    jpeg = encode_jpeg(image, MAX_PAGE_IMAGE_SIDE)
    fields = caption.to_dict()
    colors = {"colormap": colormap, "opacity": opacity}
    return html.image_page(title, jpeg, [fields, *fields.pop("alternatives")], colors, neighbors).encode()


def name_images(images: Sequence[object]) -> list[Path]:
    """Return a path for each image, from which its files are named: its own, that of its URL, or a number."""
    paths = []
    for number, image in enumerate(images, start=1):
        if isinstance(image, str) and is_url(image):
            address = urlsplit(image)
            path = Path(address.netloc + address.path)
        else:
            path = Path(image) if isinstance(image, str | os.PathLike) else Path(f"image-{number}")
        paths.append(path)
    return paths


def _unique_names(image_paths: Sequence[Path], reserved: set[str]) -> dict[Path, str]:
    """Return the file name stem for each image; equal names from different directories get a number."""
    used = set(reserved)
    names = {}
    for path in image_paths:
        name, number = path.stem, 2
        while name.casefold() in used:  # some file systems ignore case
            name, number = f"{path.stem}-{number}", number + 1
        used.add(name.casefold())
        names[path] = name
    return names


def _titles(image_paths: Sequence[Path]) -> dict[Path, str]:
    """Return a heading for each image: its name, with the directories in which the paths differ."""
    if len({path.parent for path in image_paths}) < 2:
        return {path: path.name for path in image_paths}
    absolute = {path: Path(os.path.abspath(path)) for path in image_paths}
    common = os.path.commonpath([path.parent for path in absolute.values()])
    return {path: full.relative_to(common).as_posix() for path, full in absolute.items()}


def _neighbors(names: dict[Path, str]) -> dict[Path, html.Neighbors]:
    """Return the pages before and after the page of each image."""
    pages = [None, *(f"{name}.html" for name in names.values()), None]
    return {
        path: html.Neighbors(f"{_GALLERY_NAME}.html" if len(names) > 1 else None, pages[index], pages[index + 2])
        for index, path in enumerate(names)
    }


def _frame_files(item: _ExportItem) -> list[str]:
    """Return the relative path of each frame, with the characters of its word that every file system accepts."""
    words = (re.sub(r"\W+", "", word)[:40] for word in item.caption.words)
    return [f"{item.name}/{number:02}-{word}.png" for number, word in enumerate(words, start=1)]


def _make_dir(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CaptioningError(
            f"{path}: cannot create the output directory ({error.strerror}); choose another path"
        ) from None
