"""Atomic writes: a file or directory appears under its final name only once it is complete."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# os.umask is the only portable way to read the umask; it sets it as well. Here no other thread creates files yet.
_UMASK = os.umask(0)
os.umask(_UMASK)


def partial_path(path: Path) -> Path:
    """The name under which ``path`` is written until it is complete."""
    return path.with_name(path.name + ".partial")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path``. It replaces ``path`` on success and is removed on error.

    The file gets the permissions of a file that ``open`` creates; libraries such as safetensors give it others.
    """
    temporary = partial_path(path)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_UMASK)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """Yield a temporary directory next to ``path``, which must not exist. It becomes ``path`` on success and is removed
    on error."""
    temporary = partial_path(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
