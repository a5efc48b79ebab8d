"""Files and directories that are computed once and kept in the cache directory of the user."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

_MAX_ENTRIES = 8  # of each suffix; the least recently used beyond this number are deleted


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


def find_cached(name: str) -> Path | None:
    """Return a file or directory of the cache, or None if it does not exist."""
    try:
        path = user_cache_dir() / name
    except RuntimeError:  # there is no home directory
        return None
    if not path.exists():
        return None
    with contextlib.suppress(OSError):  # a cache that is shared read-only
        os.utime(path)
    return path


def cached(name: str, build: Callable[[Path], None]) -> Path | None:
    """Return a file or directory of the cache. If it does not exist, build it.

    Args:
        name: its name, which contains a fingerprint of everything that its content depends on.
        build: writes it to a temporary path. It then appears under its name at once, so that concurrent processes
            never read incomplete content.

    Returns:
        Its path, or None if it does not exist, and cannot be built or written. ``build`` raises BuildError in that
        case.
    """
    if path := find_cached(name):
        return path
    try:
        path = user_cache_dir() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as temporary_dir:
            temporary = Path(temporary_dir) / name
            build(temporary)
            temporary.replace(path)
        _delete_old_entries(path.parent, path.suffix)
    except (BuildError, OSError, RuntimeError):
        return None
    return path


def _delete_old_entries(directory: Path, suffix: str) -> None:
    newest_first = sorted(directory.glob(f"*{suffix}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest_first[_MAX_ENTRIES:]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
