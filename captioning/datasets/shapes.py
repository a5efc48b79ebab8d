"""The set of drawn scenes on disk: JPEGs and one JSON in Karpathy's layout, read by the same code as a real set."""

import json
import random
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any

from tqdm import tqdm

from captioning.datasets.scenes import Scene, compose, draw
from captioning.datasets.statements import describe, phrases
from captioning.errors import CaptioningError
from captioning.text import tokenise

_SPLITS = (*("train",) * 8, "val", "test")


def write(root: Path, images: int, seed: int = 0) -> None:
    """Draw ``images`` scenes with five captions each into the new folder ``root``.

    The set appears whole or not at all: it is drawn beside its place and moved there when complete.
    """
    if images < 1:
        raise CaptioningError(f"{images} pictures cannot be drawn; ask for at least 1")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise CaptioningError(f"{root}: exists and is not empty; name a new folder, or remove it first")
    root.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    try:
        (unfinished / "images").mkdir()
        random_source = random.Random(seed)
        entries = []
        for number in tqdm(range(images), desc=f"drawing {root}", unit="picture"):
            scene = compose(random_source)
            entries.append(_entry(number, scene, describe(scene, random_source)))
            draw(scene).save(unfinished / "images" / entries[-1]["filename"], quality=92, subsampling=0)
        content = {"dataset": "shapes", "drawn": {"images": images, "seed": seed}, "images": entries}
        (unfinished / "dataset.json").write_text(json.dumps(content), encoding="utf-8")
        unfinished.chmod(0o755)  # a temporary folder is private; a data set is not
        if root.exists():
            root.rmdir()
        unfinished.rename(root)
    except OSError as error:
        raise CaptioningError(f"{root}: the pictures cannot be written ({error})") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def ensure(root: Path, images: int, seed: int) -> None:
    """Draw the set if it is not there; refuse one that was drawn otherwise, since figures on it would not compare."""
    try:
        drawn = json.loads((root / "dataset.json").read_text(encoding="utf-8")).get("drawn")
    except FileNotFoundError:
        write(root, images, seed)
        return
    except ValueError:
        drawn = None
    if drawn != {"images": images, "seed": seed}:
        raise CaptioningError(
            f"{root}: holds another set ({drawn}) than the one asked for ({images} scenes, seed {seed}); "
            "remove it, or choose another data.root"
        )


def _entry(number: int, scene: Scene, captions: list[str]) -> dict[str, Any]:
    # The split follows from what is in the scene, so that no scene of one split turns up in another.
    split = _SPLITS[zlib.crc32(scene.signature.encode()) % len(_SPLITS)]
    return {
        "imgid": number,
        "filepath": "images",
        "filename": f"{number:06d}.jpg",
        "split": split,
        "sentences": [
            {
                "imgid": number,
                "raw": caption,
                "tokens": tokenise(caption),
                "phrases": [
                    {"first": phrase.first, "last": phrase.last, "box": phrase.thing.box}
                    for phrase in phrases(caption, scene)
                    if phrase.thing is not None
                ],
            }
            for caption in captions
        ],
        "scene": scene.to_json(),
    }
