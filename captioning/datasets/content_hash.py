"""Hash of the content of an image file, which identifies the image whatever its name, place and date."""

import hashlib
from pathlib import Path

from captioning.utils.errors import CaptioningError

_known: dict[tuple[Path, int, int], str] = {}  # by path, size and modification time


def hash_content(path: Path) -> str:
    """Return the first 32 hex digits of the SHA-256 of a file. A file that has not changed is read once per process."""
    try:
        status = path.stat()
        key = (path, status.st_size, status.st_mtime_ns)
        if key not in _known:
            _known[key] = hashlib.sha256(path.read_bytes()).hexdigest()[:32]
    except OSError as error:
        raise CaptioningError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    return _known[key]
