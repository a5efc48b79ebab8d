from pathlib import Path

from captioning.preprocessing.find_images import find_images


def touch(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()


def test_a_directory_yields_its_images_in_order(tmp_path: Path) -> None:
    touch(tmp_path, "b.jpg", "a.HEIC", "inner/c.avif", "notes.txt", "movie.mp4")
    paths, errors = find_images([str(tmp_path), str(tmp_path / "b.jpg")])
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == ["a.HEIC", "b.jpg", "inner/c.avif"]
    assert not errors


def test_photos_of_unsupported_formats_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "b.CR2", "c.jxl")
    paths, errors = find_images([str(tmp_path)])
    assert paths == [tmp_path / "a.jpg"]
    assert [str(error) for error in errors] == [
        f"{tmp_path / 'b.CR2'}: format CR2 is not supported; export the photo as JPEG",
        f"{tmp_path / 'c.jxl'}: format JXL is not supported; export the photo as JPEG",
    ]


def test_missing_files_are_file_not_found_errors(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "empty/notes.txt")
    patterns = [str(tmp_path / name) for name in ("*.jpg", "none.jpg", "x*.jpg", "empty")]
    paths, errors = find_images(patterns)
    assert paths == [tmp_path / "a.jpg"]
    assert [isinstance(error, FileNotFoundError) for error in errors] == [True, True, False]
    assert [str(error).split(": ")[0] for error in errors] == patterns[1:]
