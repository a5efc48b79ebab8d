"""A font that has the letters of a word: Pillow's own has few beyond ASCII, so the machine is asked for the rest."""

import functools
import sys
import unicodedata
import warnings
from pathlib import Path

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_HOME = Path.home()
FOLDERS = (
    Path("/usr/share/fonts"),
    Path("/usr/local/share/fonts"),
    _HOME / ".local/share/fonts",
    _HOME / ".fonts",
    Path("/System/Library/Fonts"),
    Path("/Library/Fonts"),
    _HOME / "Library/Fonts",
    Path("C:/Windows/Fonts"),
    Path(sys.prefix) / "share/fonts",  # of a conda environment
)
_SUFFIXES = (".ttf", ".otf", ".ttc")
_LOOKS_ODD = ("bold", "italic", "oblique", "mono", "serif", "narrow", "condensed", "light", "thin", "black", "emoji")
_IN_NO_FONT = "\U0010ffff"  # not a character, so it is drawn as whatever a font draws for what it lacks
_TRIAL_SIZE = 20


def font_for(text: str, size: int) -> Font:
    """A font of this size in pixels that has all letters of the text; or most of them, and a warning."""
    return _opened(_file_for(frozenset(text)), size)


def right_to_left(text: str) -> bool:
    """Whether the text is written from the right: its first letter that has a direction says so."""
    directions = (unicodedata.bidirectional(letter) for letter in text)
    return next((direction != "L" for direction in directions if direction in ("L", "R", "AL")), False)


@functools.lru_cache(maxsize=64)
def _opened(file: Path | None, size: int) -> Font:
    return ImageFont.load_default(size) if file is None else ImageFont.truetype(file, size)


@functools.lru_cache(maxsize=4096)
def _file_for(letters: frozenset[str]) -> Path | None:
    """The file of a font; None for Pillow's own."""
    drawn = {letter for letter in letters if unicodedata.category(letter)[0] not in "ZC"}  # spaces and marks of control
    files = _files()
    best, missing = None, drawn
    for file in files:
        lacking = _lacking(file, drawn)
        if len(lacking) < len(missing) or not lacking:
            best, missing = file, lacking
        if not missing:
            if file is not None:  # the next word is likely in the same script
                files.remove(file)
                files.insert(1, file)
            return best
    script = unicodedata.name(min(missing), "UNKNOWN").split()[0]
    warnings.warn(
        f"no font of this machine has all letters of a word ({script} letters are missing), and pictures show boxes "
        "in their place; install one that has them, such as Noto Sans",
        stacklevel=2,
    )
    return best


@functools.cache
def _files() -> list[Path | None]:
    """Pillow's own font, then all that are installed, plain ones first."""
    found = {
        path for folder in FOLDERS if folder.is_dir() for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES
    }
    return [None, *sorted(found, key=_oddness)]


def _oddness(path: Path) -> tuple[int, int, str]:
    name = path.stem.lower()
    return sum(mark in name for mark in _LOOKS_ODD), "sans" not in name, str(path)


def _lacking(file: Path | None, letters: set[str]) -> set[str]:
    """Those of the letters that a font draws as it draws what it lacks."""
    try:
        # Not kept open: there may be thousands.
        font = ImageFont.load_default(_TRIAL_SIZE) if file is None else ImageFont.truetype(file, _TRIAL_SIZE)
        nothing = _drawn(font, _IN_NO_FONT)
        return {letter for letter in letters if _drawn(font, letter) == nothing}
    except OSError:  # a font of bitmaps, in other sizes than this, or a broken file
        return letters


def _drawn(font: Font, letter: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(letter)
    return mask.size, bytes(mask)
