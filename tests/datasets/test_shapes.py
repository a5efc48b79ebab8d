import json
from pathlib import Path

import pytest
from PIL import Image

from captioning.datasets import karpathy, shapes
from captioning.datasets.scenes import Scene
from captioning.datasets.statements import is_true
from captioning.errors import CaptioningError
from captioning.text import tokenise


def test_the_set_is_in_karpathys_layout(drawn: Path) -> None:
    content = json.loads((drawn / "dataset.json").read_text())
    assert len(content["images"]) == 60
    for image in content["images"]:
        with Image.open(drawn / image["filepath"] / image["filename"]) as opened:
            assert opened.format == "JPEG"
        assert image["split"] in ("train", "val", "test")
        assert len(image["sentences"]) == 5
        scene = Scene.from_json(image["scene"])
        for sentence in image["sentences"]:
            assert sentence["tokens"] == tokenise(sentence["raw"])
            assert is_true(sentence["raw"], scene)
            assert sentence["phrases"]
            boxes = [list(thing.box) for thing in scene.things]
            for phrase in sentence["phrases"]:
                assert phrase["box"] in boxes
                assert sentence["tokens"][phrase["first"]] == "a"


def test_no_scene_is_in_two_splits(tmp_path: Path) -> None:
    shapes.write(tmp_path / "set", images=300, seed=1)
    splits: dict[str, set[str]] = {}
    for record in karpathy.read(tmp_path / "set"):
        splits.setdefault(Scene.from_json(record.details["scene"]).signature, set()).add(record.split)
    assert all(len(names) == 1 for names in splits.values())
    assert {name for names in splits.values() for name in names} == {"train", "val", "test"}


def test_the_same_seed_draws_the_same_set(tmp_path: Path) -> None:
    for name, seed in (("one", 4), ("two", 4), ("other", 5)):
        shapes.write(tmp_path / name, images=5, seed=seed)
    one, two, other = ((tmp_path / name / "dataset.json").read_bytes() for name in ("one", "two", "other"))
    assert one == two != other
    files = [(tmp_path / name / "images" / "000003.jpg").read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "precious.txt").write_text("x")
    with pytest.raises(CaptioningError, match="exists and is not empty"):
        shapes.write(tmp_path / "set", images=3)
    assert (tmp_path / "set" / "precious.txt").read_text() == "x"


def test_an_interrupted_set_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(shapes, "draw", full)
    with pytest.raises(CaptioningError, match=r"cannot be written \(No space left"):
        shapes.write(tmp_path / "set", images=3)
    assert list(tmp_path.iterdir()) == []


def test_ensure_draws_once_and_refuses_another_set(tmp_path: Path) -> None:
    root = tmp_path / "set"
    shapes.ensure(root, images=4, seed=1)
    drawn = (root / "dataset.json").stat().st_mtime_ns
    shapes.ensure(root, images=4, seed=1)
    assert (root / "dataset.json").stat().st_mtime_ns == drawn
    with pytest.raises(CaptioningError, match="holds another set"):
        shapes.ensure(root, images=5, seed=1)
    with pytest.raises(CaptioningError, match="at least 1"):
        shapes.write(tmp_path / "none", images=0)
