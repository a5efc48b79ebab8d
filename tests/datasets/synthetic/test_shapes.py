import json
from pathlib import Path

import pytest
from PIL import Image

from captioning.datasets.readers import karpathy
from captioning.datasets.synthetic import shapes
from captioning.datasets.synthetic.grammar import is_caption_true
from captioning.datasets.synthetic.scene import Scene
from captioning.preprocessing.tokenizer import tokenize
from captioning.utils.errors import CaptioningError


def test_the_set_is_in_karpathys_layout(drawn: Path) -> None:
    content = json.loads((drawn / "dataset.json").read_text())
    assert len(content["images"]) == 60
    for image in content["images"]:
        with Image.open(drawn / image["filepath"] / image["filename"]) as opened:
            assert opened.format == "JPEG"
        assert image["split"] in ("train", "val", "test")
        assert len(image["sentences"]) == 5
        scene = Scene.from_dict(image["scene"])
        for sentence in image["sentences"]:
            assert sentence["tokens"] == tokenize(sentence["raw"])
            assert is_caption_true(sentence["raw"], scene)
            assert sentence["phrases"]
            boxes = [list(thing.box) for thing in scene.objects]
            for phrase in sentence["phrases"]:
                assert phrase["box"] in boxes
                assert sentence["tokens"][phrase["start"]] == "a"


def test_no_scene_is_in_two_splits(tmp_path: Path) -> None:
    shapes.generate_dataset(tmp_path / "set", num_images=300, seed=1)
    splits: dict[str, set[str]] = {}
    for record in karpathy.read_records(tmp_path / "set"):
        splits.setdefault(Scene.from_dict(record.metadata["scene"]).signature, set()).add(record.split)
    assert all(len(names) == 1 for names in splits.values())
    assert {name for names in splits.values() for name in names} == {"train", "val", "test"}


def test_the_same_seed_draws_the_same_set(tmp_path: Path) -> None:
    for name, seed in (("one", 4), ("two", 4), ("other", 5)):
        shapes.generate_dataset(tmp_path / name, num_images=5, seed=seed)
    one, two, other = ((tmp_path / name / "dataset.json").read_bytes() for name in ("one", "two", "other"))
    assert one == two != other
    files = [(tmp_path / name / "images" / "000003.jpg").read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "precious.txt").write_text("x")
    with pytest.raises(CaptioningError, match="exists and is not empty"):
        shapes.generate_dataset(tmp_path / "set", num_images=3)
    assert (tmp_path / "set" / "precious.txt").read_text() == "x"


def test_an_interrupted_set_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(shapes, "render", full)
    with pytest.raises(CaptioningError, match=r"cannot be written \(No space left"):
        shapes.generate_dataset(tmp_path / "set", num_images=3)
    assert list(tmp_path.iterdir()) == []


def test_ensure_draws_once_and_refuses_another_set(tmp_path: Path) -> None:
    root = tmp_path / "set"
    shapes.ensure_dataset(root, num_images=4, seed=1)
    drawn = (root / "dataset.json").stat().st_mtime_ns
    shapes.ensure_dataset(root, num_images=4, seed=1)
    assert (root / "dataset.json").stat().st_mtime_ns == drawn
    with pytest.raises(CaptioningError, match="contains another dataset"):
        shapes.ensure_dataset(root, num_images=5, seed=1)
    with pytest.raises(CaptioningError, match="num_images must be >= 1"):
        shapes.generate_dataset(tmp_path / "none", num_images=0)
