from pathlib import Path

import pytest

from captioning import datasets
from captioning.datasets.readers import flickr8k
from captioning.utils.errors import CaptioningError
from tests.datasets.conftest import MakeImages

TOKENS = """a.jpg#0\tA dog .
a.jpg#1\tA black dog runs .
b.jpg#0\tTwo cats , asleep
c.jpg#0\tA bird
d.jpg#0\tOf no split
gone.jpg.1#0\tpeople waiting for the subway
gone.jpg.1#1\tSome people
"""


@pytest.fixture
def original(tmp_path: Path, make_images: MakeImages) -> Path:
    make_images(*(f"Flicker8k_Dataset/{name}.jpg" for name in "abcd"))
    (tmp_path / "Flickr8k.token.txt").write_text(TOKENS)
    for split, name in (("train", "a"), ("dev", "b"), ("test", "c")):
        (tmp_path / f"Flickr_8k.{split}Images.txt").write_text(f"{name}.jpg\n")
    return tmp_path


def test_original_layout_with_its_splits_and_its_stray_caption(original: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"skipped 1 image without a file \(for example gone.jpg.1\), 0 images without captions"
    ) as caught:
        records = datasets.load_records(original)
    assert len(caught) == 1
    assert [(record.image_path.name, record.split) for record in records] == [
        ("a.jpg", "train"),
        ("b.jpg", "val"),
        ("c.jpg", "test"),
    ]
    assert records[0].captions == ("A dog .", "A black dog runs .")
    assert records[0].image_path == original / "Flicker8k_Dataset" / "a.jpg"


def test_without_the_list_of_test_images(original: Path) -> None:
    (original / "Flickr_8k.testImages.txt").unlink()
    with pytest.warns(UserWarning, match="skipped"):
        assert {record.split for record in datasets.load_records(original)} == {"train", "val"}


def test_kaggles_layout(tmp_path: Path, make_images: MakeImages) -> None:
    names = [f"{number}.jpg" for number in range(30)]
    make_images(*(f"Images/{name}" for name in names))
    lines = [f'{name},"A dog , ""Rex"" , runs"\n{name},Another one' for name in names]
    (tmp_path / "captions.txt").write_text("image,caption\n" + "\n".join(lines))
    records = datasets.load_records(tmp_path)
    assert {record.image_path for record in records} == {tmp_path / "Images" / name for name in names}
    assert records[0].captions == ('A dog , "Rex" , runs', "Another one")
    assert sorted(record.split for record in records) == ["test"] * 3 + ["train"] * 24 + ["val"] * 3
    assert datasets.load_records(tmp_path) == records, "the names decide, always alike"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "Flickr8k.token.txt",
            "a.jpg#0\tA dog\na.jpg A cat",
            r"Flickr8k.token.txt, line 2: expected 'image.jpg#0<tab>",
        ),
        ("captions.txt", "a.jpg,A dog", "captions.txt: expected the first line"),
        ("captions.txt", "image,caption\na.jpg,A dog, a cat", "captions.txt, line 2: .*got 3 fields"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CaptioningError, match=message):
        flickr8k.read_records(tmp_path)


def test_an_archive_in_a_folder_of_its_own_name(tmp_path: Path, make_images: MakeImages) -> None:
    make_images("Flickr8k_Dataset/Flickr8k_Dataset/a.jpg")
    assert flickr8k.find_image_dir(tmp_path, ["Flickr8k_Dataset"]) == tmp_path / "Flickr8k_Dataset" / "Flickr8k_Dataset"
    assert flickr8k.find_image_dir(tmp_path, ["Images"]) == tmp_path
