"""Captions with their maps, written into a folder: pictures, pages, numbers, and a gallery of them all."""

import io
import json
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from captioning import overlay, pages
from captioning.captioner import Caption
from captioning.errors import CaptioningError
from captioning.images import open_image

FORMATS = ("html", "png", "gif", "words", "npz")  # the first of those written is what a picture of the gallery leads to

PAGE_SIDE = 1200  # of the photo in a page, the longest, in pixels
_THUMBNAIL_SIDE = 280
_THUMBNAILS = "thumbnails"
_GALLERY = "index"
_FIRST_FRAME, _FRAME = 1200, 800  # milliseconds


class _Job(NamedTuple):
    """A caption to write, and under which name."""

    name: str
    title: str
    photo: Image.Image
    caption: Caption
    painter: overlay.Painter


class Export:
    """Writes captions into a folder, each under the name of its picture; of several pictures, a gallery too.

    Args:
        folder: is made if there is none. Files of the same names are replaced.
        pictures: all that will come, so that each gets a name of its own.
        formats: some of :data:`FORMATS`: ``png`` has a panel per word, ``words`` is a folder with a PNG per word at the
            photo's own size, ``gif`` goes through the words, ``html`` is a page that works from disk, ``npz`` has the
            maps as numbers, with a JSON beside it.
        colours, opacity, panel_width: as :meth:`captioning.Caption.overlay` takes them.
    """

    def __init__(
        self,
        folder: Path,
        pictures: Sequence[Path],
        formats: Sequence[str] = ("png",),
        colours: str = "light",
        opacity: float = overlay.OPACITY,
        panel_width: int = overlay.PANEL_WIDTH,
    ) -> None:
        for name in formats:
            if name not in FORMATS:
                raise CaptioningError(f"unknown format '{name}'; choose from {', '.join(FORMATS)}")
        overlay.check_panel_width(panel_width)
        self._table = overlay.colour_table(colours, opacity)
        self._colours, self._opacity, self._panel_width = colours, opacity, panel_width
        self.folder = folder
        self._formats = [name for name in FORMATS if name in formats]
        self._names = _names(pictures)
        self._cards: list[str] = []
        _make_folder(folder)

    def write(self, picture: Path, caption: Caption) -> dict[str, str]:
        """Write one caption, and say for each format which file it is in (of ``words``, which folder)."""
        photo = open_image(caption.picture, self._side_needed())
        painter = caption.painter(self._colours, self._opacity)
        job = _Job(self._names[picture], picture.name, photo, caption, painter)
        writers: dict[str, Callable[[_Job], Path]] = {
            "html": self._write_page,
            "png": self._write_panels,
            "gif": self._write_animation,
            "words": self._write_words,
            "npz": self._write_numbers,
        }
        files = {name: str(writers[name](job)) for name in self._formats}
        if self._has_gallery():
            self._cards.append(self._write_card(job))
        return files

    def close(self) -> Path | None:
        """Write the gallery of what was written, and give back its path; None if only one picture was to come."""
        if not self._has_gallery():
            return None
        return _write(self.folder / f"{_GALLERY}.html", pages.gallery_page(self._cards).encode())

    def _has_gallery(self) -> bool:
        return len(self._names) > 1

    def _side_needed(self) -> int | None:
        """Of the photo's shortest side; None for all of its pixels."""
        if "words" in self._formats:
            return None
        sides = {"html": PAGE_SIDE, "png": self._panel_width, "gif": overlay.ANIMATION_SIDE}
        return max(_THUMBNAIL_SIDE, *(sides.get(name, 0) for name in self._formats))

    def _write_page(self, job: _Job) -> Path:
        return _write(self.folder / f"{job.name}.html", page(job.title, job.photo, job.caption, self._table))

    def _write_panels(self, job: _Job) -> Path:
        sheet = overlay.panels(job.photo, job.caption.words, job.painter, self._panel_width)
        return _write(self.folder / f"{job.name}.png", encoded_png(sheet))

    def _write_animation(self, job: _Job) -> Path:
        frames = overlay.animation(job.photo, job.caption.words, job.painter)
        # Pillow dithers to a given palette only, and without that soft light shows rings.
        first, *rest = (frame.quantize(palette=frame.reduce(2).quantize()) for frame in frames)
        durations = [_FIRST_FRAME, *[_FRAME] * len(rest)]
        data = _encoded(first, "GIF", save_all=True, append_images=rest, duration=durations, loop=0)
        return _write(self.folder / f"{job.name}.gif", data)

    def _write_words(self, job: _Job) -> Path:
        _make_folder(self.folder / job.name)
        pictures = overlay.labelled(job.photo, job.caption.words, job.painter)
        for file, picture in zip(_word_files(job), pictures, strict=True):
            _write(self.folder / file, encoded_png(picture))
        return self.folder / job.name

    def _write_numbers(self, job: _Job) -> Path:
        """The maps of the caption as ``maps``, those of the next best as ``maps_1``, ``maps_2``, …"""
        maps: dict[str, Any] = {"maps": job.caption.maps}
        maps |= {f"maps_{number}": other.maps for number, other in enumerate(job.caption.others, start=1)}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **maps)
        described = {"image": job.title, **job.caption.describe()}
        _write(self.folder / f"{job.name}.json", json.dumps(described, ensure_ascii=False).encode())
        return _write(self.folder / f"{job.name}.npz", buffer.getvalue())

    def _write_card(self, job: _Job) -> str:
        thumbnail = _shrunk(job.photo, _THUMBNAIL_SIDE)
        _make_folder(self.folder / _THUMBNAILS)
        path = f"{_THUMBNAILS}/{job.name}.jpg"
        _write(self.folder / path, _encoded(thumbnail, "JPEG", quality=80))
        links = {name: f"{job.name}.{name}" for name in self._formats if name != "words"}
        files = _word_files(job) if "words" in self._formats else [None] * len(job.caption.words)
        return pages.card(job.title, zip(job.caption.words, files, strict=True), path, thumbnail.size, links)


def page(title: str, photo: Image.Image, caption: Caption, colours: Sequence[Sequence[float]]) -> bytes:
    """A picture's page, where :data:`PAGE_SIDE` of the photo is enough; colours are of ``overlay.colour_table``."""
    jpeg = _encoded(_shrunk(photo, PAGE_SIDE), "JPEG", quality=85)
    described = caption.describe()
    return pages.picture_page(title, jpeg, [described, *described.pop("others")], colours).encode()


def _names(pictures: Sequence[Path]) -> dict[Path, str]:
    """A name for each picture's files; pictures of the same name in different folders get a number."""
    taken = {_THUMBNAILS, _GALLERY}
    names = {}
    for picture in pictures:
        name, number = picture.stem, 2
        while name.casefold() in taken:  # to some file systems A and a are the same
            name, number = f"{picture.stem}-{number}", number + 1
        taken.add(name.casefold())
        names[picture] = name
    return names


def _word_files(job: _Job) -> list[str]:
    """A path within the folder for each word's picture; of the word what any file system takes."""
    names = (re.sub(r"\W+", "", word)[:40] for word in job.caption.words)
    return [f"{job.name}/{number:02}-{name}.png" for number, name in enumerate(names, start=1)]


def _shrunk(photo: Image.Image, side: int) -> Image.Image:
    small = photo.copy()
    small.thumbnail((side, side))
    return small


def _encoded(image: Image.Image, file_format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def encoded_png(image: Image.Image) -> bytes:
    # Of photos zlib's usual search makes a file no smaller, and takes five times as long: seconds for 12 megapixels.
    return _encoded(image, "PNG", compress_type=zlib.Z_RLE)


def _write(path: Path, data: bytes) -> Path:
    """Write a file whole or not at all."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise CaptioningError(f"{path}: cannot be written ({error.strerror}); check the disk and the folder") from None
    return path


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CaptioningError(f"{folder}: cannot be made a folder for overlays ({error})") from None
