import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest

from captioning import fonts

DEJAVU = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"  # Latin, Greek, Cyrillic, Hebrew, Arabic


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only folder of fonts there is, and nothing in it."""
    monkeypatch.setattr(fonts, "FOLDERS", (tmp_path, tmp_path / "none"))
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    fonts._files.cache_clear()
    fonts._file_for.cache_clear()


def test_plain_words_need_no_font_of_the_machine(folder: Path) -> None:
    assert fonts.font_for("dog", 20).getname()[0] == "Aileron"
    assert fonts.font_for("", 20).getlength("") == 0


@pytest.mark.parametrize("word", ["élan", "straße", "собака", "σκύλος", "כלב", "naïve dog"])
def test_a_font_is_found_that_has_the_letters(folder: Path, word: str) -> None:
    (folder / "inner").mkdir()
    shutil.copy(DEJAVU, folder / "inner")
    shutil.copy(DEJAVU.with_name("DejaVuSerif-Bold.ttf"), folder)
    (folder / "broken.ttf").write_text("not a font")
    (folder / "readme.txt").write_text("nor is this")
    assert fonts.font_for(word, 20).getname() == ("DejaVu Sans", "Book")
    assert fonts.font_for("dog", 20).getname()[0] == "Aileron"


def test_letters_that_no_font_has_are_told_of_once(folder: Path) -> None:
    with pytest.warns(UserWarning, match=r"no font .* \(CYRILLIC letters are missing\).* install one"):
        assert fonts.font_for("собака", 20).getname()[0] == "Aileron"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fonts.font_for("собака", 30)


def test_the_font_that_has_most_of_them(folder: Path) -> None:
    shutil.copy(DEJAVU, folder)
    with pytest.warns(UserWarning, match="CJK letters"):
        assert fonts.font_for("собака犬", 20).getname()[0] == "DejaVu Sans"


def test_direction() -> None:
    assert fonts.right_to_left("(כלב) dog")
    assert fonts.right_to_left("1 كلب")
    assert not fonts.right_to_left("dog כלב")
    assert not fonts.right_to_left("12 !")
