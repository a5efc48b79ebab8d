from pathlib import Path

import pytest

from captioning.utils.atomic_io import atomic_dir, atomic_write, partial_path


class InterruptedWriteError(Exception):
    pass


def write_and_fail(path: Path, text: str) -> None:
    path.write_text(text)
    raise InterruptedWriteError


def test_atomic_write_replaces_the_file_only_on_success(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_text("old")
    with atomic_write(path) as temporary:
        assert temporary == partial_path(path) == tmp_path / "model.bin.partial"
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_write_keeps_the_old_file_on_error(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_text("old")
    with pytest.raises(InterruptedWriteError), atomic_write(path) as temporary:
        write_and_fail(temporary, "incomplete")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_dir_appears_only_on_success(tmp_path: Path) -> None:
    path = tmp_path / "parent" / "dataset"
    with atomic_dir(path) as temporary:
        (temporary / "a.txt").write_text("a")
        assert not path.exists()
    assert (path / "a.txt").read_text() == "a"
    assert list(path.parent.iterdir()) == [path]


def test_atomic_dir_is_removed_on_error(tmp_path: Path) -> None:
    path = tmp_path / "dataset"
    with pytest.raises(InterruptedWriteError), atomic_dir(path) as temporary:
        write_and_fail(temporary / "a.txt", "incomplete")
    assert list(tmp_path.iterdir()) == []


def test_atomic_dir_discards_a_stale_partial_directory(tmp_path: Path) -> None:
    path = tmp_path / "dataset"
    partial_path(path).mkdir()
    (partial_path(path) / "stale.txt").write_text("stale")
    with atomic_dir(path) as temporary:
        assert list(temporary.iterdir()) == []
    assert list(path.iterdir()) == []


def test_files_have_the_permissions_that_open_gives(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("")
    with atomic_write(tmp_path / "model") as temporary:
        temporary.write_text("")
        temporary.chmod(0o600)
    assert (tmp_path / "model").stat().st_mode == (tmp_path / "usual").stat().st_mode
