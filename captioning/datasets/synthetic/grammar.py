"""Grammar of synthetic captions: generation of true captions of a scene, and a parser that verifies captions.

A caption is a sequence of noun phrases, joined by relations and positions, optionally after an object count:

    there are two shapes | a small red circle | left of | a blue square
    a black cross | is | in the top left corner
"""

import dataclasses
import random
import re

from captioning.datasets.synthetic.scene import COLORS, SHAPES, SIZES, Scene, SceneObject
from captioning.preprocessing.tokenizer import tokenize

CAPTIONS_PER_SCENE = 5
_ATTRIBUTE_CATEGORIES = {
    **dict.fromkeys(COLORS, "color"),
    **dict.fromkeys(SHAPES, "shape"),
    **dict.fromkeys(SIZES, "size"),
}
_POSITION_CATEGORIES = dict.fromkeys("top bottom left right middle corner".split(), "position")
WORD_CATEGORIES = (*dict.fromkeys(_ATTRIBUTE_CATEGORIES.values()), "position")

_COUNTS = {"one": 1, "two": 2, "three": 3}
# Row and column on the board, from the most to the least specific position; None matches any.
_POSITIONS: dict[str, tuple[int | None, int | None]] = {
    "in the top left corner": (0, 0),
    "in the top right corner": (0, 2),
    "in the bottom left corner": (2, 0),
    "in the bottom right corner": (2, 2),
    "at the top": (0, None),
    "at the bottom": (2, None),
    "on the left": (None, 0),
    "on the right": (None, 2),
    "in the middle": (1, 1),
}
# Sign of the difference of rows and columns between the first and the second object.
_RELATIONS = {"left of": (0, -1), "right of": (0, 1), "above": (-1, 0), "below": (1, 0)}

_TOKENS = re.compile(
    r"(?P<opening>there is|here is|we see)\b"
    r"|(?:there (?:is|are) )?(?P<count>" + "|".join(_COUNTS) + r") shapes?\b"
    r"|(?P<phrase>a (?:(?P<size>" + "|".join(SIZES) + r") )?(?P<color>" + "|".join(COLORS) + r") "
    r"(?P<shape>" + "|".join(SHAPES) + r"))\b"
    r"|(?:is )?(?P<relation>" + "|".join(_RELATIONS) + r")\b"
    r"|(?:is )?(?P<position>" + "|".join(_POSITIONS) + r")\b"
    r"|(?P<conjunction>and|with)\b"
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Phrase:
    """A phrase of words ``start`` to ``end`` (inclusive) with the object that it refers to, or None."""

    start: int
    end: int
    referent: SceneObject | None


@dataclasses.dataclass(frozen=True)
class GroundedWord:
    """A word that describes one object.

    Attributes are the index of the word in the caption, its category, and the object; None if no object matches.
    """

    position: int
    category: str  # one of WORD_CATEGORIES
    referent: SceneObject | None


@dataclasses.dataclass(frozen=True)
class Statement:
    """A part of a caption, and whether it is true for the scene."""

    text: str
    is_true: bool


def generate_captions(scene: Scene, rng: random.Random) -> list[str]:
    """Generate ``CAPTIONS_PER_SCENE`` true captions with random wording."""
    return [_generate_caption(scene, rng) for _ in range(CAPTIONS_PER_SCENE)]


def _generate_caption(scene: Scene, rng: random.Random) -> str:
    # A fixed order (large first, then left to right, then top to bottom) makes the next object predictable.
    objects = sorted(scene.objects, key=lambda item: (item.size != "large", item.board_cell[1], item.board_cell[0]))
    phrases = [_noun_phrase(item, rng) for item in objects]
    opening = rng.choice(("", "", "", "there is ", "here is ", "we see "))
    verb = "" if opening else rng.choice(("", "is "))
    if len(objects) == 1:
        located = f"{opening}{phrases[0]} {verb}{_position(objects[0])}."
        choices = [located, located, f"{opening}{phrases[0]}.", f"there is one shape: {phrases[0]}."]
    else:
        relation = _sample_relation(objects[0], objects[1], rng)
        related = f"{opening}{phrases[0]} {verb}{relation} {phrases[1]}"
        if len(objects) == 2:
            joined = f"{phrases[0]} and {phrases[1]}"
            choices = [f"{related}.", f"{related}.", f"{opening}{joined}.", f"there are two shapes: {joined}."]
        else:
            listed = f"{phrases[0]}, {phrases[1]} and {phrases[2]}"
            choices = [
                f"{related}.",
                f"{related} and {phrases[2]}.",
                f"{opening}{phrases[0]} with {phrases[1]} and {phrases[2]}.",
                f"there are three shapes: {listed}.",
            ]
    return rng.choice(choices).capitalize()


def _noun_phrase(item: SceneObject, rng: random.Random) -> str:
    size = rng.choice((f"{item.size} ", f"{item.size} ", ""))
    return f"a {size}{item.color} {item.shape}"


def _position(item: SceneObject) -> str:
    """Return the most specific position of an object."""
    return next(name for name in _POSITIONS if _is_at_position(item, name))


def _sample_relation(first: SceneObject, second: SceneObject, rng: random.Random) -> str:
    return rng.choice([name for name in _RELATIONS if _relation_holds(name, first, second)])


def _relation_holds(relation: str, first: SceneObject, second: SceneObject) -> bool:
    row_sign, column_sign = _RELATIONS[relation]
    (first_row, first_column), (second_row, second_column) = first.board_cell, second.board_cell
    return (first_row - second_row) * row_sign > 0 or (first_column - second_column) * column_sign > 0


def check_statements(caption: str, scene: Scene) -> list[Statement]:
    """Split a caption into statements and verify each. Text that cannot be parsed is a false statement."""
    return _Parser(scene).parse(caption).statements


def noun_phrases(caption: str, scene: Scene) -> list[Phrase]:
    """Return the noun phrases of a caption with their referents."""
    return _Parser(scene).parse(caption).noun_phrases


def grounded_words(caption: str, scene: Scene) -> list[GroundedWord]:
    """Return the words that describe exactly one object. Relations (two objects) and counts (all) are excluded."""
    words = tokenize(caption)
    parsed = _Parser(scene).parse(caption)
    return [
        GroundedWord(position, categories[words[position]], phrase.referent)
        for phrases, categories in (
            (parsed.noun_phrases, _ATTRIBUTE_CATEGORIES),
            (parsed.position_phrases, _POSITION_CATEGORIES),
        )
        for phrase in phrases
        for position in range(phrase.start, phrase.end + 1)
        if words[position] in categories
    ]


def is_caption_true(caption: str, scene: Scene) -> bool:
    """Return whether a caption contains at least one statement and all its statements are true."""
    statements = check_statements(caption, scene)
    return bool(statements) and all(statement.is_true for statement in statements)


class _Parser:
    """Parser of one caption. A position phrase has the referent of the noun phrase before it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.statements: list[Statement] = []
        self.noun_phrases: list[Phrase] = []
        self.position_phrases: list[Phrase] = []
        self._pending: str | None = None  # the relation or conjunction that requires a noun phrase next

    def parse(self, caption: str) -> "_Parser":
        text = " ".join(tokenize(caption))
        offset = 0
        while offset < len(text):
            match = _TOKENS.match(text, offset)
            if match is None:
                self._add(text[offset:], False)
                return self
            start = text[:offset].count(" ")
            self._parse_token(match, start, start + match.group().count(" "))
            offset = match.end() + 1
        if self._pending is not None or not self.noun_phrases:
            self._add(text, False)
        return self

    def _add(self, text: str, is_true: bool) -> None:
        self.statements.append(Statement(text, is_true))

    def _parse_token(self, match: re.Match[str], start: int, end: int) -> None:
        words = match.group()
        previous = self.noun_phrases[-1].referent if self.noun_phrases else None
        if match.lastgroup == "count":
            self._add(words, not self.noun_phrases and _COUNTS[match["count"]] == len(self.scene.objects))
        elif match.lastgroup == "position":
            is_there = previous is not None and _is_at_position(previous, match["position"])
            self._add(words, self._pending is None and is_there)
            self.position_phrases.append(Phrase(start, end, previous))
        elif match.lastgroup == "opening":
            if start:
                self._add(words, False)
        elif match.lastgroup in ("relation", "conjunction"):
            if self._pending is not None or not self.noun_phrases:
                self._add(words, False)
            self._pending = match["relation"] or "and"
        else:
            self._parse_noun_phrase(match, previous, start, end)

    def _parse_noun_phrase(self, match: re.Match[str], previous: SceneObject | None, start: int, end: int) -> None:
        words = match.group()
        mentioned = [phrase.referent for phrase in self.noun_phrases]
        candidates = (item for item in self.scene.objects if _matches_object(match, item) and item not in mentioned)
        referent = next(candidates, None)
        self._add(words, referent is not None)
        if self._pending in _RELATIONS:
            holds = previous is not None and referent is not None and _relation_holds(self._pending, previous, referent)
            self._add(f"{self._pending} {words}", holds)
        self._pending = None
        self.noun_phrases.append(Phrase(start, end, referent))


def _matches_object(phrase: re.Match[str], item: SceneObject) -> bool:
    same_kind = (phrase["color"], phrase["shape"]) == (item.color, item.shape)
    return same_kind and phrase["size"] in (None, item.size)


def _is_at_position(item: SceneObject, position: str) -> bool:
    row, column = _POSITIONS[position]
    return row in (item.board_cell[0], None) and column in (item.board_cell[1], None)
