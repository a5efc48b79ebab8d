from pathlib import Path

import pytest

from captioning import datasets
from captioning.cli.main import main
from captioning.datasets.summary import summarize
from tests.datasets.conftest import MakeImages


@pytest.fixture
def folder(tmp_path: Path, make_images: MakeImages) -> Path:
    make_images("a.jpg", "b.jpg", "c.jpg")
    rows = ["a.jpg,A dog runs,train", "a.jpg,A dog,train", "b.jpg,A red cat runs,val", "c.jpg,Birds,test"]
    (tmp_path / "captions.csv").write_text("\n".join(["image,caption,split", *rows]))
    return tmp_path


def test_counts(folder: Path) -> None:
    lines = summarize(datasets.load_records(folder)).splitlines()
    assert lines[1].split() == ["train", "1", "2", "2.0", "2.5,", "2", "to", "3,", "3"]
    assert lines[2].split()[:4] == ["val", "1", "1", "1.0"]
    assert lines[5].split() == ["min_word_freq", "words", "val", "coverage", "test", "coverage"]
    assert lines[6].split() == ["1", "3", "50.0%", "0.0%"]  # "a" and "runs" of four words
    assert lines[7].split() == ["2", "2", "25.0%", "0.0%"]  # only "a" and "dog" occur twice


def test_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["inspect-data", str(folder)])
    output = capsys.readouterr().out
    assert "min_word_freq" in output
    assert "0 of 3 images cannot be opened" in output


def test_command_names_images_that_cannot_be_opened(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "b.jpg").write_bytes(b"no image")
    with pytest.raises(SystemExit) as stop:
        main(["inspect-data", str(folder)])
    assert stop.value.code == 2
    output = capsys.readouterr().out
    assert str(folder / "b.jpg") in output
    assert "1 of 3 images cannot be opened" in output


@pytest.mark.filterwarnings("default")
def test_command_warns_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "c.jpg").unlink()
    main(["inspect-data", str(folder)])
    errors = capsys.readouterr().err
    assert f"captioning: warning: {folder / 'captions.csv'}: skipped 1 image without a file" in errors
    assert errors.count("warning:") == 1


def test_command_without_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["inspect-data", str(tmp_path / "none")])
    assert capsys.readouterr().err.startswith(f"captioning: error: {tmp_path / 'none'}: no such directory")
