"""One command, thin: it finds its input, calls the library, and prints. Heavy imports wait until they are needed."""

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from captioning import __version__, models
from captioning.errors import CaptioningError

_TRAINING = {
    "fit": "train a model by a config",
    "validate": "measure a checkpoint on the validation split",
    "test": "measure a checkpoint on the test split",
    "predict": "caption the test split with a checkpoint, into a JSONL file",
    "features": "fill the feature cache of a config; 'fit' does so by itself",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; bad input ends in one line on stderr and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    warnings.showwarning = _warn
    try:
        if arguments and arguments[0] in _TRAINING:
            from captioning.training.command import run

            run(arguments)
            return
        options = _parser().parse_args(arguments)
        options.run(options)
    except CaptioningError as error:
        _fail(error)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        sys.stderr.close()
        sys.exit(0)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """In one line, as errors are; where in the code it came up is of no use to who runs a command."""
    print(f"captioning: warning: {message}", file=file or sys.stderr)


def _fail(error: CaptioningError) -> NoReturn:
    print(f"captioning: error: {error}", file=sys.stderr)
    sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="captioning",
        description="A picture goes in; a sentence comes out, and for every word a map of where the model looked.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    caption = commands.add_parser("caption", help="caption pictures", description="Caption pictures.")
    caption.add_argument("pictures", nargs="+", metavar="PICTURE", help="a file, a folder, or a glob like 'a/*.jpg'")
    caption.add_argument(
        "--model",
        default=models.SHIPPED[0],
        metavar="MODEL",
        help=f"{' or '.join(models.SHIPPED)}, which come along, or the .safetensors file of a training run "
        "(default %(default)s)",
    )
    caption.add_argument("--json", action="store_true", help="print one JSON object per picture instead of text")
    caption.add_argument("--overlay", type=Path, metavar="DIR", help="write for each picture where the model looked")
    _add_overlay(caption)
    caption.add_argument(
        "--n-best", type=int, default=1, metavar="N", help="captions of each picture, up to --beam (default 1)"
    )
    _add_search(caption)
    caption.add_argument(
        "--look",
        choices=("expect", "argmax", "sample"),
        help="how hard attention looks: at all places by their chances, at the likeliest, or at one drawn by chance "
        "(default: as the model was validated)",
    )
    caption.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of --sample and --look sample, for the same pictures and batch size (default 0)",
    )
    caption.add_argument("--batch-size", type=int, default=32, metavar="N", help="pictures at a time (default 32)")
    caption.set_defaults(run=_caption)

    serve = commands.add_parser(
        "serve",
        help="a page in the browser, and a REST API (with the extra 'web')",
        description="Serve a page that captions photos dropped on it, and a REST API beside it. Nothing goes to disk.",
    )
    serve.add_argument(
        "--host", default="127.0.0.1", help="address to serve on (default %(default)s, this machine only)"
    )
    serve.add_argument("--port", type=int, default=8000, help="0 for any that is free (default %(default)s)")
    serve.add_argument(
        "--model",
        nargs="+",
        default=models.SHIPPED,
        metavar="MODEL",
        help=f".safetensors files of training runs (default {' '.join(models.SHIPPED)}, what comes along)",
    )
    serve.add_argument("--max-megabytes", type=float, default=20, metavar="N", help="of a request (default 20)")
    serve.add_argument("--max-megapixels", type=float, default=50, metavar="N", help="of a picture (default 50)")
    serve.set_defaults(run=_serve)

    slim = commands.add_parser(
        "slim",
        help="write a small copy of a model file, to hand on",
        description="Write a small copy of a model file: in half precision, and of its CNN only what was trained, "
        "since every installation has the pretrained weights. The copy captions by the search that is given here.",
    )
    slim.add_argument("model", type=Path, metavar="MODEL", help="the .safetensors file of a training run")
    slim.add_argument("target", type=Path, metavar="TARGET", help="the file to write")
    _add_search(slim)
    slim.set_defaults(run=_slim)

    shapes = commands.add_parser(
        "shapes",
        help="draw a set of captioned scenes",
        description="Draw scenes of coloured shapes, five captions each: JPEGs and one JSON in Karpathy's layout.",
    )
    shapes.add_argument("folder", type=Path, metavar="DIR", help="a folder that does not exist yet")
    shapes.add_argument("--images", type=int, default=1000, metavar="N", help="how many (default 1000)")
    shapes.add_argument("--seed", type=int, default=0, help="the same seed draws the same scenes (default 0)")
    shapes.set_defaults(run=_shapes)

    data = commands.add_parser(
        "data",
        help="say what is in a set of captioned pictures",
        description="Say what is in a set of captioned pictures, in any of the layouts of data/README.md: pictures, "
        "captions, splits, lengths, how much a vocabulary covers, and which pictures cannot be opened.",
    )
    data.add_argument("path", type=Path, metavar="PATH", help="its folder, or a CSV, TSV or JSONL file of captions")
    data.set_defaults(run=_data)

    score = commands.add_parser(
        "score",
        help="score captions of any system against references",
        description="Score captions against references: BLEU, ROUGE-L, CIDEr-D, METEOR (with the extra 'eval'), and "
        "how varied they are. Captions: COCO results JSON, Karpathy's JSON, the JSONL of 'captioning predict', or text "
        "with a line for each picture. References: COCO annotations JSON, Karpathy's JSON, a folder in any layout of "
        "data/README.md, or text with a line for each picture and tabs between its references.",
    )
    score.add_argument("captions", nargs="+", type=Path, metavar="CAPTIONS", help="one system's, or two to compare")
    score.add_argument("references", type=Path, metavar="REFERENCES", help="what people said")
    score.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    score.add_argument(
        "--bootstrap", action="store_true", help="say within what bounds 95%% of other draws of the pictures lie"
    )
    score.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    score.set_defaults(run=_score)

    for name, text in _TRAINING.items():
        commands.add_parser(name, help=f"{text} ('captioning {name} --help' for its options)", add_help=False)
    return parser


_OVERLAY = ("format", "colours", "opacity", "panel_width")  # what is of use with --overlay only


def _add_overlay(parser: argparse.ArgumentParser) -> None:
    """What :class:`captioning.export.Export` takes."""
    group = parser.add_argument_group("how overlays look")
    group.add_argument(
        "--format",
        metavar="NAMES",
        help="some of png (a panel per word), words (a PNG per word, full size), gif, html (a page that works from "
        "disk) and npz (numbers), with commas between them (default png)",
    )
    group.add_argument("--colours", metavar="NAME", help="of the maps: light, heat or viridis (default light)")
    group.add_argument("--opacity", type=float, metavar="SHARE", help="how much they hide at most (default 0.75)")
    group.add_argument("--panel-width", type=int, metavar="PIXELS", help="of a word's panel in the png (default 200)")


_SEARCH: dict[str, tuple[type, str, str]] = {
    "--beam": (int, "K", "captions that the search keeps; 1 is greedy"),
    "--length-penalty": (float, "P", "compare captions by log p / length ** P; more for longer ones"),
    "--minimum-length": (int, "N", "words before which a caption does not end"),
    "--maximum-length": (int, "N", "words after which it is cut"),
    "--no-repeat": (int, "N", "never say the same N words in a row twice"),
    "--groups": (int, "G", "part the beam into groups that say different things"),
    "--diversity": (float, "D", "how much a group avoids the words of the others"),
    "--temperature": (float, "T", "of --sample: below 1 safer, above 1 bolder"),
    "--top-k": (int, "K", "of --sample: draw among the K likeliest words only"),
    "--nucleus": (float, "P", "of --sample: draw among the likeliest words that have this share of the chances"),
}


def _add_search(parser: argparse.ArgumentParser) -> None:
    """What :class:`captioning.search.Search` takes, under the same names."""
    group = parser.add_argument_group("how captions are found (by default as the model was validated)")
    group.add_argument("--sample", action="store_true", default=None, help="draw words by chance instead of searching")
    for flag, (kind, metavar, text) in _SEARCH.items():
        group.add_argument(flag, type=kind, metavar=metavar, help=text)


def _search(options: argparse.Namespace) -> dict[str, Any]:
    names = ("sample", *(flag.removeprefix("--").replace("-", "_") for flag in _SEARCH))
    return {name: getattr(options, name) for name in names}


def _slim(options: argparse.Namespace) -> None:
    from captioning.captioner import Captioner

    Captioner.load(options.model, device="cpu", **_search(options)).save(options.target, slim=True)
    print(f"{options.target}: {options.target.stat().st_size / 1e6:.1f} MB")


def _serve(options: argparse.Namespace) -> None:
    try:
        from captioning.web.command import serve
        from captioning.web.uploads import Limits
    except ModuleNotFoundError as error:
        raise CaptioningError(f"'serve' needs {error.name}, among others: pip install 'captioning[web]'") from None
    serve(options.model, options.host, options.port, Limits(options.max_megabytes, options.max_megapixels))


def _shapes(options: argparse.Namespace) -> None:
    from captioning.datasets import shapes

    shapes.write(options.folder, options.images, options.seed)
    print(f"{options.images} scenes in {options.folder}; captions in {options.folder / 'dataset.json'}")


def _score(options: argparse.Namespace) -> None:
    from captioning import scoring

    if len(options.captions) > 2:
        raise CaptioningError(f"{len(options.captions)} files of captions: take one, or two to compare")
    if not 0 <= options.seed < 2**32:
        raise CaptioningError(f"--seed {options.seed}: take a number from 0 to {2**32 - 1}")
    report = scoring.compare(options.captions, options.references, options.bootstrap, options.seed)
    print(json.dumps(report.as_json()) if options.json else report.as_table())


def _data(options: argparse.Namespace) -> None:
    from captioning import datasets
    from captioning.datasets.summary import summarise, unreadable

    records = datasets.read(datasets.locate(options.path))
    print(summarise(records), flush=True)
    bad = unreadable(records)
    for error in bad:
        print(error)
    print(f"\n{len(bad)} of {len(records)} pictures cannot be opened")
    if bad:
        sys.exit(2)


def _caption(options: argparse.Namespace) -> None:
    """Print each picture's caption. Those that cannot be read are named on stderr, and the rest go on."""
    if options.batch_size < 1:
        raise CaptioningError(f"--batch-size {options.batch_size}: take at least 1")
    if not 0 <= options.seed < 2**63:
        raise CaptioningError(f"--seed {options.seed}: take a number from 0 to {2**63 - 1}")
    overlay = {name: value for name in _OVERLAY if (value := getattr(options, name)) is not None}
    if overlay and not options.overlay:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in overlay)
        raise CaptioningError(f"{flags}: of use with --overlay DIR only; say where overlays are to be written")

    from captioning.images import find_pictures

    pictures, errors = find_pictures(options.pictures)
    failed = bool(errors)
    for error in errors:
        print(f"captioning: error: {error}", file=sys.stderr)
    if not pictures:
        sys.exit(2)

    from tqdm import tqdm

    from captioning.captioner import Captioner
    from captioning.export import Export

    export = None
    if options.overlay:
        formats = overlay.pop("format", "png").split(",")
        export = Export(options.overlay, pictures, [name.strip() for name in formats], **overlay)
    given = {"look": options.look, "seed": options.seed, "n_best": options.n_best}
    captioner = Captioner.load(options.model, **given, **_search(options))
    captions = captioner.each(pictures, options.batch_size)
    # A bar only where someone watches: the captions themselves show progress on a terminal.
    quiet = sys.stdout.isatty() or not sys.stderr.isatty() or len(pictures) <= options.batch_size
    for path, caption in tqdm(zip(pictures, captions, strict=True), total=len(pictures), disable=quiet, unit="picture"):
        if isinstance(caption, CaptioningError):
            failed = True
            print(f"captioning: error: {caption}", file=sys.stderr)
            continue
        result = {"image": str(path), **caption.describe(maps=False)}
        if export:
            try:
                result["overlay"] = export.write(path, caption)
            except CaptioningError as error:  # the caption itself is good
                failed = True
                print(f"captioning: error: {error}", file=sys.stderr)
        if options.json:
            print(json.dumps(result, ensure_ascii=False), flush=True)
        else:
            for one in (caption, *caption.others):
                print(f"{path}\t{one.text}", flush=True)
    if export:
        print(f"overlays are in {export.close() or options.overlay}", file=sys.stderr)
    if failed:
        sys.exit(2)
