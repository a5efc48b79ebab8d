"""List of the files that captioning wrote to a directory, so that it never replaces the files of others."""

from collections.abc import Iterator
from pathlib import Path

from captioning.utils.errors import CaptioningError

_MANIFEST_NAME = ".captioning-files"


class OutputManifest:
    """The files that captioning wrote to an output directory, one relative path per line.

    Args:
        output_dir: an existing directory.
    """

    def __init__(self, output_dir: Path) -> None:
        self._output_dir = output_dir
        self._path = output_dir / _MANIFEST_NAME
        self._names = set(self._path.read_text("utf-8").splitlines()) if self._path.is_file() else set()

    def claim(self, path: Path) -> None:
        """Record a file before it is written. Raises CaptioningError if it exists and is not of captioning."""
        name = path.relative_to(self._output_dir).as_posix()
        if name in self._names:
            return
        if path.exists():
            raise CaptioningError(
                f"{path}: exists and was not written by captioning; it is kept. Choose another output directory"
            )
        self._names.add(name)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")


def written_files(directory: Path) -> Iterator[Path]:
    """Yield the files that captioning wrote to a directory and to the directories below it."""
    for manifest in directory.rglob(_MANIFEST_NAME):
        for name in manifest.read_text("utf-8", errors="replace").splitlines():
            yield manifest.parent / name
