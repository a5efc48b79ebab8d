import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest

from captioning.visualization import fonts

DEJAVU = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"  # Latin, Greek, Cyrillic, Hebrew, Arabic


@pytest.fixture
def font_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory that is the only font directory."""
    monkeypatch.setattr(fonts, "FONT_DIRS", (tmp_path, tmp_path / "none"))
    clear_caches()
    yield tmp_path
    clear_caches()


def clear_caches() -> None:
    fonts._font_files.cache_clear()
    fonts._find_font_file.cache_clear()


def test_default_font_covers_ascii(font_dir: Path) -> None:
    assert fonts.find_font("dog", 20).getname()[0] == "Aileron"
    assert fonts.find_font("", 20).getlength("") == 0


@pytest.mark.parametrize("word", ["élan", "straße", "собака", "σκύλος", "כלב", "naïve dog"])
def test_finds_a_font_with_all_characters(font_dir: Path, word: str) -> None:
    (font_dir / "inner").mkdir()
    shutil.copy(DEJAVU, font_dir / "inner")
    shutil.copy(DEJAVU.with_name("DejaVuSerif-Bold.ttf"), font_dir)
    (font_dir / "broken.ttf").write_text("not a font")
    (font_dir / "readme.txt").write_text("not a font either")
    assert fonts.find_font(word, 20).getname() == ("DejaVu Sans", "Book")
    assert fonts.find_font("dog", 20).getname()[0] == "Aileron"


def test_missing_characters_warn_once(font_dir: Path) -> None:
    with pytest.warns(UserWarning, match=r"no installed font .* \(CYRILLIC characters are missing\).* install a font"):
        assert fonts.find_font("собака", 20).getname()[0] == "Aileron"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fonts.find_font("собака", 30)


def test_prefers_the_font_with_the_fewest_missing_characters(font_dir: Path) -> None:
    shutil.copy(DEJAVU, font_dir)
    with pytest.warns(UserWarning, match="CJK characters"):
        assert fonts.find_font("собака犬", 20).getname()[0] == "DejaVu Sans"


def test_is_right_to_left() -> None:
    assert fonts.is_right_to_left("(כלב) dog")
    assert fonts.is_right_to_left("1 كلب")
    assert not fonts.is_right_to_left("dog כלב")
    assert not fonts.is_right_to_left("12 !")
