"""Fine-tuning of a pretrained model on a few images of another dataset: what it gains there, and what it forgets.

    python -m benchmarks.finetune --new coco --old flickr8k --num-images 200

Draws training images of the new dataset by a seed, trains configs/finetune.yaml on them, and prints CIDEr-D before and
after on the validation splits of both datasets, each model with its own generation settings.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from captioning import Captioner, datasets
from captioning.evaluation.metrics import CiderD
from captioning.preprocessing.tokenizer import tokenize

CONFIG = "configs/finetune.yaml"


def write_subset(source: Path, root: Path, num_images: int, seed: int) -> None:
    """Write a dataset with ``num_images`` training images and all validation images of ``source``, as links."""
    records = datasets.load_records(source)
    train = [record for record in records if record.split == "train"]
    drawn = random.Random(seed).sample(train, num_images)
    (root / "images").mkdir(parents=True, exist_ok=True)
    rows = []
    for record in [*drawn, *(record for record in records if record.split == "val")]:
        link = root / "images" / record.image_path.name
        if not link.exists():
            link.symlink_to(record.image_path.resolve())
        rows.append({"image": link.name, "captions": record.captions, "split": record.split})
    (root / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))


def captioning(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "captioning", *arguments], check=True)


def validate(model: str, root: Path) -> float:
    """CIDEr-D of a model, with its own generation settings, on the validation split of a dataset."""
    records = datasets.load_split(root, "val")
    captions = Captioner.from_pretrained(model)([record.image_path for record in records])
    references = [[tokenize(caption) for caption in record.captions] for record in records]
    return statistics.mean(CiderD(references)([caption.words for caption in captions]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--new", type=Path, default=Path("coco"), help="dataset to adapt to")
    parser.add_argument("--old", type=Path, default=Path("flickr8k"), help="dataset of the model")
    parser.add_argument("--model", default="flickr8k-soft", help="model to adapt")
    parser.add_argument("--num-images", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmark-finetune"))
    parser.add_argument("--feature-cache-dir", type=Path, default=Path("data/features"))
    options = parser.parse_args()
    subset, features = options.output_dir / "subset", options.feature_cache_dir
    old = datasets.resolve_root(options.old)
    write_subset(datasets.resolve_root(options.new), subset, options.num_images, options.seed)
    start = time.perf_counter()
    data = ["--data.root", str(subset), "--data.feature_cache_dir", str(features), "--model.init_from", options.model]
    run = ["--trainer.logger.init_args.save_dir", str(options.output_dir), "--trainer.logger.init_args.version", "run"]
    captioning("fit", "--config", CONFIG, *data, *run, "--seed_everything", str(options.seed))
    minutes = (time.perf_counter() - start) / 60
    tuned = str(options.output_dir / "finetune" / "run" / "checkpoints" / "best.safetensors")
    print(
        f"\nfine-tuning on {options.num_images} images: {minutes:.1f} minutes\n\nvalidation CIDEr-D   before    after"
    )
    for name, root in (("new", subset), ("old", old)):
        before, after = (validate(model, root) for model in (options.model, tuned))
        print(f"{name + ': ' + root.name:<20} {before:.3f}    {after:.3f}    {after - before:+.3f}", flush=True)


if __name__ == "__main__":
    main()
