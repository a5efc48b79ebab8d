"""Files that are computed once and kept in the cache directory of the user."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

_MAX_FILES = 8  # the least recently used files beyond this number are deleted


class BuildError(Exception):
    """A file of the cache cannot be built."""


def user_cache_dir() -> Path:
    """Return the directory of ``captioning`` below the cache directory of the platform; it need not exist."""
    if directory := os.environ.get("XDG_CACHE_HOME"):
        return Path(directory) / "captioning"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "captioning" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "captioning"
    return Path.home() / ".cache" / "captioning"


def cached_file(name: str, build: Callable[[Path], None]) -> Path | None:
    """Return a file of the cache. If it does not exist, build it.

    Args:
        name: name of the file, which contains a fingerprint of everything that its content depends on.
        build: writes the file to a temporary path. The file then appears under its name at once, so that concurrent
            processes never read an incomplete file.

    Returns:
        Path of the file, or None if it does not exist, and cannot be built or written. ``build`` raises
        BuildError in that case.
    """
    try:
        directory = user_cache_dir()
        path = directory / name
        if path.is_file():
            _mark_used(path)
            return path
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as temporary_dir:
            temporary = Path(temporary_dir) / name
            build(temporary)
            temporary.replace(path)
        _delete_old_files(directory, path.suffix)
    except (BuildError, OSError, RuntimeError):  # RuntimeError: there is no home directory
        return None
    return path


def _mark_used(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:
        return  # a cache that is shared read-only


def _delete_old_files(directory: Path, suffix: str) -> None:
    newest_first = sorted(directory.glob(f"*{suffix}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest_first[_MAX_FILES:]:
        path.unlink(missing_ok=True)
