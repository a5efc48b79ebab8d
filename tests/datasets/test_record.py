import random
from pathlib import Path

from captioning.datasets.record import Record, hash_split
from captioning.datasets.synthetic.scene import sample_scene


def test_scene_of_a_synthetic_record() -> None:
    scene = sample_scene(random.Random(0))
    assert Record(Path("a.jpg"), ("A dog.",), "train", {"scene": scene.to_dict()}).scene == scene
    assert Record(Path("a.jpg"), ("A dog.",), "train", {"cocoid": 1}).scene is None


def test_hash_split_depends_on_the_names_only() -> None:
    names = [f"{number}.jpg" for number in range(50)]
    splits = hash_split(names)
    assert splits == hash_split(reversed([*names, *names]))
    assert sorted(splits.values()) == ["test"] * 5 + ["train"] * 40 + ["val"] * 5


def test_hash_split_limits_the_held_out_images() -> None:
    splits = list(hash_split((str(number) for number in range(50)), max_held_out=2).values())
    assert (splits.count("val"), splits.count("test"), splits.count("train")) == (2, 2, 46)
