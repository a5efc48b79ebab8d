import itertools
import random

import numpy as np

from captioning.datasets.synthetic.scene import COLORS, Scene, render, sample_scene


def many(count: int = 400) -> list[Scene]:
    source = random.Random(5)
    return [sample_scene(source) for _ in range(count)]


def test_the_seed_says_it_all() -> None:
    assert many(20) == many(20)
    np.testing.assert_array_equal(np.asarray(render(many(1)[0])), np.asarray(render(many(1)[0])))


def test_scenes_are_what_they_promise() -> None:
    scenes = many()
    assert {len(scene.objects) for scene in scenes} == {1, 2, 3}
    for scene in scenes:
        kinds = [(thing.shape, thing.color) for thing in scene.objects]
        assert len(set(kinds)) == len(kinds)
        for thing in scene.objects:
            assert 0 <= thing.box.left < thing.box.right <= 1
            assert 0 <= thing.box.top < thing.box.bottom <= 1
        for one, other in itertools.combinations(scene.objects, 2):
            apart = one.box.right < other.box.left or other.box.right < one.box.left
            assert apart or one.box.bottom < other.box.top or other.box.bottom < one.box.top


def test_a_box_holds_its_object_and_no_paint_falls_outside() -> None:
    for scene in many(60):
        pixels = np.asarray(render(scene)).astype(int)
        side = len(pixels)
        painted = np.abs(pixels - scene.background).sum(-1) > 30
        for thing in scene.objects:
            left, top, right, bottom = (round(edge * side) for edge in thing.box)
            middle = pixels[round(thing.y * side), round(thing.x * side)]
            assert np.abs(middle - COLORS[thing.color]).sum() < 10
            inside = painted[top - 1 : bottom + 1, left - 1 : right + 1]
            assert inside.mean() > 0.3
            painted[top - 1 : bottom + 1, left - 1 : right + 1] = False
        assert not painted.any()


def test_there_and_back_by_json() -> None:
    import json

    for scene in many(10):
        assert Scene.from_dict(json.loads(json.dumps(scene.to_dict()))) == scene
