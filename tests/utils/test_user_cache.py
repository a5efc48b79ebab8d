from pathlib import Path

import pytest

from captioning.utils.user_cache import BuildError, cached, user_cache_dir


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "captioning"


def test_a_file_is_built_once(cache_dir: Path) -> None:
    path = cached("a.txt", lambda path: path.write_text("first") and None)
    assert path == user_cache_dir() / "a.txt" == cache_dir / "a.txt"
    assert cached("a.txt", lambda path: pytest.fail("built again")) == path
    assert path.read_text() == "first"


@pytest.mark.parametrize("error", [BuildError, OSError])
def test_a_failed_build_leaves_nothing(cache_dir: Path, error: type[Exception]) -> None:
    def build(path: Path) -> None:
        path.write_text("incomplete")
        raise error

    assert cached("a.txt", build) is None
    assert not list(cache_dir.iterdir())


def test_the_least_recently_used_file_is_deleted(cache_dir: Path) -> None:
    for index in range(8):
        cached(f"{index}.txt", Path.touch)
    cached("0.txt", Path.touch)
    cached("8.txt", Path.touch)
    assert sorted(path.stem for path in cache_dir.iterdir()) == ["0", *"2345678"]


@pytest.mark.parametrize(
    ("platform", "expected"), [("linux", ".cache/captioning"), ("darwin", "Library/Caches/captioning")]
)
def test_the_directory_follows_the_platform(
    platform: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", platform)
    assert user_cache_dir() == tmp_path / expected
