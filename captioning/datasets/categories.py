"""Words of captions that name object categories: the 80 categories of COCO, which include the 20 of PASCAL VOC.

The last word of a phrase determines the category. The preceding word resolves ambiguities: "hot dog" does not map to
dog, and "light" maps to traffic light only after "traffic" or "stop". A word outside the table is its own category, in
the singular. This covers the objects of synthetic scenes and the phrases of Flickr30k Entities.
"""

import functools
from collections.abc import Sequence

# Category -> words and two-word phrases that name it, in the singular; regular plurals are added. "Orange" is nearly
# always the color, "glass" often the material, "bag" any of three categories, "baby", "adult" and "passenger" often
# describe animals and vehicles: they name no category.
_PHRASES = {
    "person": "person, people, man, men, woman, women, child, children, boy, girl, kid, toddler, guy, lady, "
    "gentleman, gentlemen, teen, teenager, someone, somebody, pedestrian, crowd, family, friend, spectator, "
    "player, athlete, batter, catcher, umpire, referee, skier, snowboarder, skateboarder, skater, surfer, swimmer, "
    "runner, golfer, climber, hiker, rider, cyclist, bicyclist, biker, motorcyclist, driver, worker, officer, "
    "policeman, policemen, fireman, firemen, firefighter, soldier, fisherman, fishermen, cowboy, chef, student, "
    "bride, groom, dancer, singer, musician, performer",
    "bicycle": "bicycle, bike",
    "car": "car, automobile, sedan, taxi, cab, suv, jeep, convertible",
    "motorcycle": "motorcycle, motorbike, moped, scooter, motor cycle, motor bike, dirt bike",
    "airplane": "airplane, aeroplane, plane, aircraft, airliner, jetliner, jet, biplane",
    "bus": "bus",
    "train": "train, locomotive, trolley",
    "truck": "truck, firetruck, pickup",
    "boat": "boat, ship, sailboat, motorboat, speedboat, rowboat, canoe, kayak, ferry, yacht, gondola",
    "traffic light": "traffic light, stop light, stoplight, traffic signal",
    "fire hydrant": "hydrant",
    "stop sign": "stop sign",
    "parking meter": "meter",
    "bench": "bench",
    "bird": "bird, seagull, gull, duck, goose, geese, parrot, pigeon, owl, eagle, swan, pelican, flamingo, peacock",
    "cat": "cat, kitten, kitty",
    "dog": "dog, puppy, pup, doggy, poodle, labrador, retriever, terrier, bulldog, dachshund, beagle, husky",
    "horse": "horse, pony, foal",
    "sheep": "sheep, lamb",
    "cow": "cow, cattle, calf, calves, bull, ox, oxen",
    "elephant": "elephant",
    "bear": "bear",
    "zebra": "zebra",
    "giraffe": "giraffe",
    "backpack": "backpack, knapsack",
    "umbrella": "umbrella, parasol",
    "handbag": "handbag, purse",
    "tie": "tie, necktie",
    "suitcase": "suitcase, luggage",
    "frisbee": "frisbee, frisbie",
    "skis": "skis",
    "snowboard": "snowboard, snow board",
    "sports ball": "ball",
    "kite": "kite",
    "baseball bat": "bat",
    "baseball glove": "baseball glove, mitt",
    "skateboard": "skateboard, skate board",
    "surfboard": "surfboard, surf board",
    "tennis racket": "racket, racquet",
    "bottle": "bottle",
    "wine glass": "wine glass, wineglass",
    "cup": "cup, mug",
    "fork": "fork",
    "knife": "knife, knives",
    "spoon": "spoon",
    "bowl": "bowl",
    "banana": "banana",
    "apple": "apple",
    "sandwich": "sandwich, hamburger, burger",
    "orange": "oranges",
    "broccoli": "broccoli",
    "carrot": "carrot",
    "hot dog": "hot dog, hotdog",
    "pizza": "pizza",
    "donut": "donut, doughnut",
    "cake": "cake, cupcake",
    "chair": "chair, armchair",
    "couch": "couch, sofa, loveseat",
    "potted plant": "plant, houseplant",
    "bed": "bed",
    "dining table": "table",
    "toilet": "toilet",
    "tv": "tv, television, monitor",
    "laptop": "laptop, laptop computer",
    "mouse": "mouse, mice",
    "remote": "remote, controller, remote control",
    "keyboard": "keyboard",
    "cell phone": "phone, cellphone, smartphone",
    "microwave": "microwave, microwave oven",
    "oven": "oven, stove",
    "toaster": "toaster, toaster oven",
    "sink": "sink",
    "refrigerator": "refrigerator, fridge",
    "book": "book",
    "clock": "clock",
    "vase": "vase",
    "scissors": "scissors",
    "teddy bear": "teddy bear, stuffed bear, teddy",
    "hair drier": "hair drier, hair dryer, hairdryer",
    "toothbrush": "toothbrush, tooth brush",
}
# Phrases in the singular whose last word alone would name a category; the phrases name none.
_EXCLUDED_PHRASES = "pool table, flower bed, truck bed, chili dog, power plant"
# Names of PASCAL VOC and of older COCO files that differ from those above.
_LABEL_ALIASES = {
    "aeroplane": "airplane",
    "diningtable": "dining table",
    "motorbike": "motorcycle",
    "pottedplant": "potted plant",
    "sofa": "couch",
    "tvmonitor": "tv",
}


def named_categories(words: Sequence[str]) -> list[str]:
    """Return the category that each word of a tokenized caption names; empty for excluded words."""
    return [word_category(word, previous) for previous, word in zip(("", *words), words, strict=False)]


def word_category(word: str, previous: str = "") -> str:
    """Return the category of a word after the word ``previous``. A word outside the table is its own category."""
    table = phrase_table()
    return table.get((previous, word), table.get(("", word), _singular(word)))


@functools.lru_cache(maxsize=100_000)
def label_category(label: str) -> str:
    """Return the category of a box label.

    If the label is a category or an alias of one, it is this category. Otherwise it is the category that the last word
    names, together with the word before it ("hot dog"); "" if it names none.

    "aeroplane" -> "airplane", "a boy in a red shirt" -> "shirt", "red circle" -> "circle".
    """
    label = " ".join(label.lower().split())
    if label in _PHRASES or label in _LABEL_ALIASES:
        return _LABEL_ALIASES.get(label, label)
    return named_categories(label.split())[-1] if label else ""


@functools.cache
def phrase_table() -> dict[tuple[str, str], str]:
    """Map (previous word, word) to categories; the previous word is empty where the word alone decides."""
    table: dict[tuple[str, str], str] = {}
    for category, phrases in _PHRASES.items():
        for phrase in phrases.split(", "):
            table |= dict.fromkeys(_inflect(phrase), category)
    table["", "orange"] = ""  # the color
    return table | {key: "" for phrase in _EXCLUDED_PHRASES.split(", ") for key in _inflect(phrase)}


def _inflect(phrase: str) -> list[tuple[str, str]]:
    """(previous word, word) of a phrase and of its plural."""
    previous, _, word = phrase.rpartition(" ")
    return [(previous, word), (previous, _plural(word))]


def _plural(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh")):
        return f"{word}es"
    return f"{word[:-1]}ies" if word.endswith("y") and word[-2] not in "aeiou" else f"{word}s"


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word
