"""Robustness to the encoding of images: CIDEr-D on validation images that are saved again or upscaled.

    python -m benchmarks.encodings photos-soft --data coco

``difference`` is the mean difference from the images as they are, with its 95 % bootstrap confidence interval.
"""

import argparse
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from captioning import Captioner, datasets
from captioning.evaluation.bootstrap import ratio_with_ci
from captioning.evaluation.metrics import CiderD
from captioning.evaluation.tables import markdown_table
from captioning.models.pretrained import DEFAULT_MODEL
from captioning.preprocessing.tokenizer import tokenize


def encode(image: Image.Image, file_format: str, **options: int) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def upscale(image: Image.Image) -> Image.Image:
    return image.resize((2 * image.width, 2 * image.height), Image.Resampling.BICUBIC)


ENCODINGS: dict[str, Callable[[Image.Image], bytes]] = {
    "PNG": lambda image: encode(image, "PNG"),
    "JPEG, quality 95": lambda image: encode(image, "JPEG", quality=95),
    "JPEG, quality 40": lambda image: encode(image, "JPEG", quality=40),
    "upscaled 2×, PNG": lambda image: encode(upscale(image), "PNG"),
    "upscaled 2×, JPEG, quality 90": lambda image: encode(upscale(image), "JPEG", quality=90),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.encodings", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help="default %(default)s")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="dataset, see data/README.md")
    parser.add_argument("--split", default="val", help="train, val or test (default val)")
    parser.add_argument("--num-images", type=int, metavar="N", help="first N images (default all)")
    options = parser.parse_args()
    records = datasets.load_split(options.data, options.split, options.num_images)
    captioner = Captioner.from_pretrained(options.model)
    cider_d = CiderD([[tokenize(caption) for caption in record.captions] for record in records])
    unchanged = [caption.words for caption in captioner([record.image_path for record in records])]
    scores = np.array(cider_d(unchanged))
    rows = [["encoding", "CIDEr-D", "difference", "changed captions"], ["as they are", f"{scores.mean():.3f}", "", ""]]
    for name, encoding in ENCODINGS.items():
        images = (encoding(Image.open(record.image_path).convert("RGB")) for record in records)
        captions = [caption.words for caption in captioner(images)]
        new_scores = np.array(cider_d(captions))
        difference = ratio_with_ci(new_scores - scores, np.ones(len(scores)))
        num_changed = sum(words != before for words, before in zip(captions, unchanged, strict=True))
        rows.append([name, f"{new_scores.mean():.3f}", str(difference), f"{num_changed} of {len(records)}"])
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
