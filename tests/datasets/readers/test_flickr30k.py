from pathlib import Path

import pytest

from captioning import datasets
from captioning.utils.errors import CaptioningError
from tests.datasets.conftest import MakeImages

NAMES = [f"{number}.jpg" for number in range(20)]


def test_token_file(tmp_path: Path, make_images: MakeImages) -> None:
    make_images(*(f"flickr30k_images/{name}" for name in NAMES))
    (tmp_path / "results_20130124.token").write_text("".join(f"{name}#0\tA man .\n{name}#1\tMen !\n" for name in NAMES))
    records = datasets.load_records(tmp_path)
    assert len(records) == 20
    assert records[0].captions == ("A man .", "Men !")
    assert {record.split for record in records} == {"train", "val", "test"}


@pytest.mark.parametrize("folder", [".", "flickr30k_images"])
def test_table_with_its_broken_line(tmp_path: Path, make_images: MakeImages, folder: str) -> None:
    make_images(*(f"flickr30k_images/{name}" for name in NAMES))
    lines = ["image_name| comment_number| comment"]
    for name in NAMES:
        lines += [f"{name}| 0| A man , smiling .", f"{name}| 1   A dog runs across the grass ."]
    (tmp_path / folder / "results.csv").write_text("\n".join(lines))
    records = datasets.load_records(tmp_path)
    assert records[0].captions == ("A man , smiling .", "A dog runs across the grass .")
    assert records[0].image_path == tmp_path / "flickr30k_images" / "0.jpg"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "expected the first line"),
        ("image_name| comment_number| comment\na.jpg| x| A dog", "line 2: expected 'image.jpg"),
        ("image_name| comment_number| comment\na.jpg| 0|", "line 2: expected 'image.jpg"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "results.csv").write_text(text)
    with pytest.raises(CaptioningError, match=message):
        datasets.load_records(tmp_path)
