"""Font lookup by character coverage. Pillow's default font covers little beyond ASCII; system fonts cover the rest."""

import functools
import sys
import unicodedata
import warnings
from pathlib import Path

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_HOME = Path.home()
FONT_DIRS = (
    Path("/usr/share/fonts"),
    Path("/usr/local/share/fonts"),
    _HOME / ".local/share/fonts",
    _HOME / ".fonts",
    Path("/System/Library/Fonts"),
    Path("/Library/Fonts"),
    _HOME / "Library/Fonts",
    Path("C:/Windows/Fonts"),
    Path(sys.prefix) / "share/fonts",  # conda environments
)
_SUFFIXES = (".ttf", ".otf", ".ttc")
_STYLE_KEYWORDS = tuple("bold italic oblique mono serif narrow condensed light thin black emoji".split())
_NOTDEF_CHAR = "\U0010ffff"  # a noncharacter, which every font renders with its .notdef glyph
_TEST_SIZE = 20


def find_font(text: str, size: int) -> Font:
    """Return a font of ``size`` pixels with all characters of the text, or with most of them and a warning."""
    return _load_font(_find_font_file(frozenset(text)), size)


def is_right_to_left(text: str) -> bool:
    """Return whether the first strongly directional character of the text is right-to-left."""
    directions = (unicodedata.bidirectional(character) for character in text)
    return next((direction != "L" for direction in directions if direction in ("L", "R", "AL")), False)


@functools.lru_cache(maxsize=64)
def _load_font(path: Path | None, size: int) -> Font:
    return ImageFont.load_default(size) if path is None else ImageFont.truetype(path, size)


@functools.lru_cache(maxsize=4096)
def _find_font_file(characters: frozenset[str]) -> Path | None:
    """Return the path of the font with the fewest missing glyphs; None stands for Pillow's default font."""
    visible = {char for char in characters if unicodedata.category(char)[0] not in "ZC"}  # no separators, no controls
    paths = _font_files()
    best, fewest_missing = None, visible
    for path in paths:
        missing = _missing_glyphs(path, visible)
        if len(missing) < len(fewest_missing) or not missing:
            best, fewest_missing = path, missing
        if not fewest_missing:
            if path is not None:  # try this font early for the next word, which probably has the same script
                paths.remove(path)
                paths.insert(1, path)
            return best
    script = unicodedata.name(min(fewest_missing), "UNKNOWN").split()[0]
    warnings.warn(
        f"no installed font has all characters of a word ({script} characters are missing), so overlays show boxes "
        "instead; install a font that has them, for example Noto Sans",
        stacklevel=2,
    )
    return best


@functools.cache
def _font_files() -> list[Path | None]:
    """List Pillow's default font, then all installed fonts, regular styles first."""
    paths = {
        path
        for font_dir in FONT_DIRS
        if font_dir.is_dir()
        for path in font_dir.rglob("*")
        if path.suffix.lower() in _SUFFIXES
    }
    return [None, *sorted(paths, key=_style_penalty)]


def _style_penalty(path: Path) -> tuple[int, int, str]:
    name = path.stem.lower()
    return sum(keyword in name for keyword in _STYLE_KEYWORDS), "sans" not in name, str(path)


def _missing_glyphs(path: Path | None, characters: set[str]) -> set[str]:
    """Return the characters that the font renders with its .notdef glyph."""
    try:
        # Not through the cache of _load_font, which would keep many files open.
        font = ImageFont.load_default(_TEST_SIZE) if path is None else ImageFont.truetype(path, _TEST_SIZE)
        notdef = _glyph_bitmap(font, _NOTDEF_CHAR)
        return {character for character in characters if _glyph_bitmap(font, character) == notdef}
    except OSError:  # a bitmap font without this size, or a damaged file
        return characters


def _glyph_bitmap(font: Font, character: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(character)
    return mask.size, bytes(mask)
