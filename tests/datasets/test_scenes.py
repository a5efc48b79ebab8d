import itertools
import random

import numpy as np

from captioning.datasets.scenes import COLOURS, Scene, compose, draw


def many(count: int = 400) -> list[Scene]:
    source = random.Random(5)
    return [compose(source) for _ in range(count)]


def test_the_seed_says_it_all() -> None:
    assert many(20) == many(20)
    np.testing.assert_array_equal(np.asarray(draw(many(1)[0])), np.asarray(draw(many(1)[0])))


def test_scenes_are_what_they_promise() -> None:
    scenes = many()
    assert {len(scene.things) for scene in scenes} == {1, 2, 3}
    for scene in scenes:
        kinds = [(thing.shape, thing.colour) for thing in scene.things]
        assert len(set(kinds)) == len(kinds)
        for thing in scene.things:
            assert 0 <= thing.box.left < thing.box.right <= 1
            assert 0 <= thing.box.top < thing.box.bottom <= 1
        for one, other in itertools.combinations(scene.things, 2):
            apart = one.box.right < other.box.left or other.box.right < one.box.left
            assert apart or one.box.bottom < other.box.top or other.box.bottom < one.box.top


def test_a_box_holds_its_object_and_no_paint_falls_outside() -> None:
    for scene in many(60):
        pixels = np.asarray(draw(scene)).astype(int)
        side = len(pixels)
        painted = np.abs(pixels - scene.ground).sum(-1) > 30
        for thing in scene.things:
            left, top, right, bottom = (round(edge * side) for edge in thing.box)
            middle = pixels[round(thing.y * side), round(thing.x * side)]
            assert np.abs(middle - COLOURS[thing.colour]).sum() < 10
            inside = painted[top - 1 : bottom + 1, left - 1 : right + 1]
            assert inside.mean() > 0.3
            painted[top - 1 : bottom + 1, left - 1 : right + 1] = False
        assert not painted.any()


def test_there_and_back_by_json() -> None:
    import json

    for scene in many(10):
        assert Scene.from_json(json.loads(json.dumps(scene.to_json()))) == scene
