"""Whether the maps of models are honest, on a split of captioned pictures.

``make bench-maps MODEL="flickr8k-soft flickr8k-hard" DATA=flickr8k`` prints the table of docs/results.md, and leaves
docs/maps.png and docs/maps.json. 'captioning validate --maps' measures the same of a checkpoint.
"""

import argparse
from pathlib import Path

from captioning import Captioner, datasets, faithfulness_report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.maps", description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a model that comes along, or a .safetensors file")
    parser.add_argument("--data", type=Path, required=True, help="captioned pictures, in any layout of data/README.md")
    parser.add_argument("--split", default="val", help="train, val or test (default val)")
    parser.add_argument("--pictures", type=int, default=200, help="how many of the split, the first (default 200)")
    parser.add_argument("--plot", type=Path, default=Path("docs/maps.png"), help="where the plot goes")
    options = parser.parse_args()
    records = [record for record in datasets.read(datasets.locate(options.data)) if record.split == options.split]
    records = records[: options.pictures]
    reports = {Path(model).stem: faithfulness_report.check(Captioner.load(model), records) for model in options.models}
    print(faithfulness_report.table(reports))
    for path in faithfulness_report.write(options.plot, reports):
        print(f"\n{path}")


if __name__ == "__main__":
    main()
