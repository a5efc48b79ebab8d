"""The language of drawn scenes: sentences that are true of a scene, and a checker that says which statements are.

A sentence is a chain of noun phrases, the relations and places between them, and, before them, a count of the shapes:

    there are two shapes | a small red circle | left of | a blue square
    a black cross | is | in the top left corner
"""

import dataclasses
import random
import re

from captioning.datasets.scenes import COLOURS, SHAPES, SIZES, Scene, Thing
from captioning.text import tokenise

CAPTIONS_PER_SCENE = 5
_KINDS = {
    **dict.fromkeys(COLOURS, "colour"),
    **dict.fromkeys(SHAPES, "shape"),
    **dict.fromkeys(SIZES, "size"),
}
KINDS = (*dict.fromkeys(_KINDS.values()), "place")

_COUNTS = {"one": 1, "two": 2, "three": 3}
# Row and column on the board; None is any.
_PLACES: dict[str, tuple[int | None, int | None]] = {
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
_PLACE_WORDS = frozenset("top bottom left right middle corner".split())
# By how many rows and columns the first object must stand apart from the second: its sign is what counts.
_RELATIONS = {"left of": (0, -1), "right of": (0, 1), "above": (-1, 0), "below": (1, 0)}

_TOKENS = re.compile(
    r"(?P<opening>there is|here is|we see)\b"
    r"|(?:there (?:is|are) )?(?P<count>" + "|".join(_COUNTS) + r") shapes?\b"
    r"|(?P<phrase>a (?:(?P<size>" + "|".join(SIZES) + r") )?(?P<colour>" + "|".join(COLOURS) + r") "
    r"(?P<shape>" + "|".join(SHAPES) + r"))\b"
    r"|(?:is )?(?P<relation>" + "|".join(_RELATIONS) + r")\b"
    r"|(?:is )?(?P<place>" + "|".join(_PLACES) + r")\b"
    r"|(?P<joint>and|with)\b"
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Phrase:
    """A noun phrase: words ``first`` to ``last`` of the caption, both included, name an object, or none."""

    first: int
    last: int
    thing: Thing | None


@dataclasses.dataclass(frozen=True)
class Telling:
    """A word that tells something of one object, if the object is there: which of its words, and what kind of word."""

    position: int
    kind: str  # of KINDS
    thing: Thing | None


@dataclasses.dataclass(frozen=True)
class Statement:
    """A part of a caption, and whether it is true of the scene."""

    text: str
    true: bool


def describe(scene: Scene, random_source: random.Random) -> list[str]:
    """Five sentences, all true, in varied wording."""
    return [_sentence(scene, random_source) for _ in range(CAPTIONS_PER_SCENE)]


def _sentence(scene: Scene, random_source: random.Random) -> str:
    # As people do, the large ones first, then from left to right and down: where to look next follows from the picture.
    things = sorted(scene.things, key=lambda thing: (thing.size != "large", thing.cell[1], thing.cell[0]))
    phrases = [_noun_phrase(thing, random_source) for thing in things]
    opening = random_source.choice(("", "", "", "there is ", "here is ", "we see "))
    is_ = "" if opening else random_source.choice(("", "is "))
    if len(things) == 1:
        located = f"{opening}{phrases[0]} {is_}{_place(things[0])}."
        choices = [located, located, f"{opening}{phrases[0]}.", f"there is one shape: {phrases[0]}."]
    else:
        relation = _relation(things[0], things[1], random_source)
        related = f"{opening}{phrases[0]} {is_}{relation} {phrases[1]}"
        if len(things) == 2:
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
    return random_source.choice(choices).capitalize()


def _noun_phrase(thing: Thing, random_source: random.Random) -> str:
    size = random_source.choice((f"{thing.size} ", f"{thing.size} ", ""))
    return f"a {size}{thing.colour} {thing.shape}"


def _place(thing: Thing) -> str:
    """The first place that fits: the nine of them are listed from the narrowest."""
    row, column = thing.cell
    return next(
        name for name, (its_row, its_column) in _PLACES.items()
        if its_row in (row, None) and its_column in (column, None)
    )  # fmt: skip


def _relation(one: Thing, other: Thing, random_source: random.Random) -> str:
    return random_source.choice([name for name in _RELATIONS if _holds(name, one, other)])


def _holds(relation: str, one: Thing, other: Thing) -> bool:
    down, across = _RELATIONS[relation]
    (row, column), (other_row, other_column) = one.cell, other.cell
    return (row - other_row) * down > 0 or (column - other_column) * across > 0


def check(caption: str, scene: Scene) -> list[Statement]:
    """Each statement of a caption, and whether it is true of the scene. Words that make no sense are a false one."""
    return _read(caption, scene)[0]


def phrases(caption: str, scene: Scene) -> list[Phrase]:
    """The noun phrases of a caption, and the object that each names."""
    return _read(caption, scene)[1]


def telling(caption: str, scene: Scene) -> list[Telling]:
    """The words that tell of one object alone; a relation tells of two, a count of all."""
    words = tokenise(caption)
    _, things, places = _read(caption, scene)
    kinds = ((things, _KINDS), (places, dict.fromkeys(_PLACE_WORDS, "place")))
    return [
        Telling(position, kind[words[position]], phrase.thing)
        for phrases_of_kind, kind in kinds
        for phrase in phrases_of_kind
        for position in range(phrase.first, phrase.last + 1)
        if words[position] in kind
    ]


def is_true(caption: str, scene: Scene) -> bool:
    """Whether a caption says something and every statement of it is true."""
    statements = check(caption, scene)
    return bool(statements) and all(statement.true for statement in statements)


def _read(caption: str, scene: Scene) -> tuple[list[Statement], list[Phrase], list[Phrase]]:
    """Statements, noun phrases, and the phrases that say where the object of the noun phrase before them is."""
    text = " ".join(tokenise(caption))
    statements: list[Statement] = []
    found: list[Phrase] = []
    places: list[Phrase] = []
    pending: str | None = None  # what waits for a noun phrase: a relation, or "and"
    position = 0
    while position < len(text):
        match = _TOKENS.match(text, position)
        if match is None:
            statements.append(Statement(text[position:], False))
            return statements, found, places
        kind, words = match.lastgroup, match.group()
        first = text[:position].count(" ")
        last = first + words.count(" ")
        previous = found[-1].thing if found else None
        if kind == "count":
            statements.append(Statement(words, not found and _COUNTS[match["count"]] == len(scene.things)))
        elif kind == "place":
            statements.append(
                Statement(words, pending is None and previous is not None and _is_at(previous, match["place"]))
            )
            places.append(Phrase(first, last, previous))
        elif kind == "opening":
            if position:
                statements.append(Statement(words, False))
        elif kind in ("relation", "joint"):
            if pending is not None or not found:
                statements.append(Statement(words, False))
            pending = match["relation"] or "and"
        else:
            named = [found_phrase.thing for found_phrase in found]
            thing = next((thing for thing in scene.things if _fits(match, thing) and thing not in named), None)
            statements.append(Statement(words, thing is not None))
            if pending in _RELATIONS:
                holds = previous is not None and thing is not None and _holds(pending, previous, thing)
                statements.append(Statement(f"{pending} {words}", holds))
            pending = None
            found.append(Phrase(first, last, thing))
        position = match.end() + 1
    if pending is not None or not found:
        statements.append(Statement(text, False))
    return statements, found, places


def _fits(phrase: re.Match[str], thing: Thing) -> bool:
    same_kind = (phrase["colour"], phrase["shape"]) == (thing.colour, thing.shape)
    return same_kind and phrase["size"] in (None, thing.size)


def _is_at(thing: Thing, place: str) -> bool:
    row, column = thing.cell
    its_row, its_column = _PLACES[place]
    return its_row in (row, None) and its_column in (column, None)
