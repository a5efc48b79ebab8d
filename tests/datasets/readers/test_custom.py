import json
from pathlib import Path

import pytest

from captioning import datasets
from captioning.utils.errors import CaptioningError
from tests.datasets.conftest import MakeImages


@pytest.fixture
def folder(tmp_path: Path, make_images: MakeImages) -> Path:
    make_images("images/a.jpg", "images/b.png", "c.jpg")
    return tmp_path


def said(records: list[datasets.Record]) -> dict[str, tuple[str, ...]]:
    return {record.image_path.name: record.captions for record in records}


EXPECTED = {"a.jpg": ("A dog, black", "Rex"), "b.png": ("A cat",), "c.jpg": ("A bird", "A crow", "Corvid")}


ROWS = """image,caption
a.jpg,"A dog, black"
a.jpg,Rex
b.png,A cat
c.jpg,A bird
c.jpg,A crow
c.jpg,Corvid
"""
COLUMNS = """Filename,Caption 1,Caption 2,Caption 3
a.jpg,"A dog, black",Rex,
b.png,A cat
c.jpg,A bird,A crow,Corvid
"""
SEMICOLONS = ROWS.replace("image,caption", "image;caption").replace("pg,", "pg;").replace("png,", "png;")
TABS = """file\tcaption_1\tcaption_2\tcaption_3
a.jpg\tA dog, black\tRex\t
b.png\tA cat\t\t
c.jpg\tA bird\tA crow\tCorvid
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("captions.csv", ROWS),
        ("captions.csv", COLUMNS),
        ("captions.csv", SEMICOLONS),
        ("captions.tsv", TABS),
        ("mine.csv", "\ufeff" + ROWS),
    ],
    ids=["rows", "columns", "semicolons", "tabs", "a spreadsheet's, named itself"],
)
def test_tables(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text, encoding="utf-8")
    assert said(datasets.load_records(folder if name.startswith("captions") else folder / name)) == EXPECTED


def test_json_lines(folder: Path) -> None:
    rows = [
        {"image": "images/a.jpg", "captions": ["A dog, black", "Rex"], "split": "train"},
        {"image": "b.png", "caption": "A cat", "split": "dev"},
        {"image": "c.jpg", "captions": ["A bird", "A crow"], "split": "test"},
        {"image": "c.jpg", "caption": "Corvid"},
    ]
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    records = datasets.load_records(folder)
    assert said(records) == EXPECTED
    assert [record.split for record in records] == ["train", "val", "test"]


def test_texts_beside_images(tmp_path: Path, make_images: MakeImages) -> None:
    names = [f"{number}/photo.JPG" for number in range(12)]
    make_images(*names)
    for name in names:
        (tmp_path / name).with_suffix(".txt").write_text("A dog.\n\nIt runs.\n")
    make_images("without.jpg")
    records = datasets.load_records(tmp_path)
    assert len(records) == 12
    assert records[0].captions == ("A dog.", "It runs.")
    assert sorted(record.split for record in records) == ["test"] + ["train"] * 10 + ["val"]


def test_missing_images_and_empty_captions_are_counted_in_one_warning(folder: Path) -> None:
    (folder / "captions.csv").write_text("image,caption\na.jpg,A dog\nb.png,\ngone.jpg,A cat\naway.jpg,A cow\n")
    message = (
        r"skipped 2 images without a file \(for example gone.jpg\), 1 image without captions \(for example b.png\)"
    )
    with pytest.warns(UserWarning, match=message) as caught:
        assert said(datasets.load_records(folder)) == {"a.jpg": ("A dog",)}
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "captions.csv",
            "image,caption\na.jpg,A dog, black\n",
            "line 2: more fields than the header; put quotes",
        ),
        (
            "captions.csv",
            "photo,caption\na.jpg,A dog\n",
            "line 2: no image field; name it one of image, file",
        ),
        ("captions.csv", "image,text\na.jpg,A dog\n", "line 2: no caption field"),
        (
            "captions.csv",
            "image,caption,split\na.jpg,A dog,north\n",
            "line 2: unknown split 'north'; use train, val or test",
        ),
        ("captions.csv", "image,caption\ngone.jpg,A dog\n", r"no usable image \(1 image without a file"),
        ("captions.jsonl", '{"image": "a.jpg"', "line 1: not JSON"),
        ("captions.jsonl", '["a.jpg"]', "line 1: expected an object"),
        ("captions.jsonl", '{"image": "a.jpg", "captions": [1]}', "line 1: captions must be a string"),
    ],
)
def test_bad_rows_are_named(folder: Path, name: str, text: str, message: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(CaptioningError, match=message) as caught:
        datasets.load_records(folder)
    assert str(folder / name) in str(caught.value)


@pytest.mark.parametrize("name", ["captions.csv", "captions.tsv", "captions.jsonl", "images/a.txt"])
def test_text_in_another_encoding_is_named(folder: Path, name: str) -> None:
    (folder / name).write_bytes("image,caption\na.jpg,Ein Bär\n".encode("latin-1"))
    with pytest.raises(CaptioningError, match=r"not UTF-8 text \(byte 25\); save it as UTF-8") as caught:
        datasets.load_records(folder)
    assert str(folder / name) in str(caught.value)


def test_a_quote_that_is_not_closed(folder: Path) -> None:
    (folder / "captions.csv").write_text('image,caption\na.jpg,"' + "A dog\n" * 30_000)
    with pytest.raises(CaptioningError, match=r"line \d+: field larger than field limit .*; check the quotes"):
        datasets.load_records(folder)


def test_a_folder_without_captions_says_what_was_looked_for(tmp_path: Path, make_images: MakeImages) -> None:
    make_images("a.jpg")
    with pytest.raises(CaptioningError, match=r"no captions found, expected one of: Karpathy's JSON.*Flickr8k.*COCO"):
        datasets.load_records(tmp_path)
    with pytest.raises(CaptioningError, match="no such directory"):
        datasets.load_records(tmp_path / "none")


def test_sets_are_found_below_the_folder_of_all_sets(
    tmp_path: Path, make_images: MakeImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_images("sets/mine/a.jpg", "here/a.jpg")
    monkeypatch.chdir(tmp_path)
    assert datasets.resolve_root(Path("mine")) == Path("mine")
    monkeypatch.setenv("CAPTIONING_DATA_DIR", str(tmp_path / "sets"))
    assert datasets.resolve_root(Path("mine")) == tmp_path / "sets" / "mine"
    assert datasets.resolve_root(Path("here")) == Path("here")
    assert datasets.resolve_root(Path("nowhere")) == Path("nowhere")
