"""Expansion of files, directories and glob patterns to image paths. This module does not import torch."""

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path

from captioning.utils.errors import CaptioningError, MissingFileError
from captioning.utils.output_manifest import written_files

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".heif", ".hif")
)
# Formats of photos that are not supported. Such a file in a directory is reported instead of being skipped silently.
_UNSUPPORTED_SUFFIXES = frozenset(
    ".3fr .arw .cr2 .cr3 .crw .dng .erf .j2k .jp2 .jpf .jxl .jxr .kdc .mos .mrw .nef .nrw .orf .pef .psd .raf .raw "
    ".rw2 .sr2 .srf .srw .x3f".split()
)


def find_images(patterns: Sequence[str]) -> tuple[list[Path], list[CaptioningError]]:
    """Expand files, directories and glob patterns to unique image paths.

    Returns:
        The image paths, and one error for each missing file, each pattern without an image, and each photo in a
        directory whose format is not supported. Overlays that captioning wrote to a directory are not included.
    """
    found: dict[Path, None] = {}
    errors: list[CaptioningError] = []
    for pattern in patterns:
        for path in _expand(pattern):
            if isinstance(path, CaptioningError):
                errors.append(path)
            else:
                found[path] = None
    return list(found), errors


def _expand(pattern: str) -> Iterator[Path | CaptioningError]:
    path = Path(pattern)
    if path.is_dir():
        yield from _expand_dir(path)
    elif path.exists():
        yield path
    elif glob.has_magic(pattern):
        matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]
        yield from (match for match in matches if match.is_file())
        if not matches:
            yield MissingFileError(f"{pattern}: no file matches; check the pattern")
    else:
        yield MissingFileError(f"{pattern}: no such file; check the path")


def _expand_dir(directory: Path) -> Iterator[Path | CaptioningError]:
    outputs = set(written_files(directory))  # overlays of an earlier run are not photos
    files = sorted(file for file in directory.rglob("*") if file.is_file() and file not in outputs)
    images = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    unsupported = [file for file in files if file.suffix.lower() in _UNSUPPORTED_SUFFIXES]
    yield from images
    for file in unsupported:
        yield CaptioningError(f"{file}: format {file.suffix.upper()[1:]} is not supported; export the photo as JPEG")
    if not images and not unsupported:
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        yield CaptioningError(f"{directory}: no images in this directory (expected files ending in {suffixes})")
