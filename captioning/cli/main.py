"""The ``captioning`` command: dispatches to one module per command. Heavy imports wait until a command needs them."""

import argparse
import importlib
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn, TextIO

from captioning import __version__
from captioning.cli.parser import Parser, check_command, with_flag_names
from captioning.utils.errors import CaptioningError
from captioning.utils.threads import THREADS_HELP, configure_threads

_COMMANDS = {
    "caption": "caption images and export attention overlays",
    "serve": "serve a web page and a REST API (requires the extra 'web')",
    "score": "score captions of any system against references",
    "calibrate": "calibrate the confidence of a model on reference captions",
    "faithfulness": "occlusion test of attention maps",
    "grounding": "compare attention maps with boxes of objects",
    "inspect-data": "summarize a dataset and find unreadable images",
    "make-shapes": "generate a dataset of synthetic scenes",
    "average": "average the weights of several models",
    "compress": "write a compact copy of a model file",
    "plot": "plot the training curves of runs (requires the extra 'plots')",
    "export": "write a model as ONNX files, for use without PyTorch",
}
_TRAINING_COMMANDS = {
    "fit": "train a model",
    "validate": "evaluate a checkpoint on the validation split",
    "test": "evaluate a checkpoint on the test split",
    "predict": "caption the test split with a checkpoint and write a JSONL file",
    "cache-features": "fill the feature cache of a config; 'fit' does this automatically",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Invalid input prints one line to stderr and exits with code 2."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    warnings.showwarning = _show_warning
    try:
        if arguments and arguments[0] in _TRAINING_COMMANDS:
            _run_training_command(arguments)
            return
        if arguments:
            check_command(arguments[0], [*_COMMANDS, *_TRAINING_COMMANDS])
        options = _build_parser(arguments[0] if arguments else None).parse_args(arguments)
        configure_threads(options.threads)
        _run_command(options)
    except CaptioningError as error:
        _exit_with_error(error)
    except KeyboardInterrupt:
        print("captioning: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of the pipe, such as head, has closed it
        sys.stderr.close()
        sys.exit(0)


def _run_command(options: argparse.Namespace) -> None:
    try:
        options.run(options)
    except CaptioningError as error:
        raise CaptioningError(with_flag_names(str(error), options)) from error


def _run_training_command(arguments: Sequence[str]) -> None:
    from captioning.cli.lightning_checks import check_arguments

    configure_threads(check_arguments(arguments))

    from captioning.training.cli import main as lightning_main

    lightning_main(arguments)


def _build_parser(command: str | None) -> argparse.ArgumentParser:
    """Build the parser. Only the module of ``command`` is imported, so ``captioning --help`` starts quickly."""
    parser = Parser(
        prog="captioning",
        description="Image captioning with soft and hard attention: a caption, and an attention map for every word.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, text in _COMMANDS.items():
        if name != command:
            commands.add_parser(name, help=text)
            continue
        module = importlib.import_module(f"captioning.cli.{name.replace('-', '_')}")
        subparser = commands.add_parser(name, help=text, description=module.DESCRIPTION)
        module.add_arguments(subparser)
        subparser.add_argument("--threads", type=int, metavar="N", help=THREADS_HELP)
        subparser.set_defaults(run=module.run)
    for name, text in _TRAINING_COMMANDS.items():
        commands.add_parser(name, help=f"{text} ('captioning {name} --help' lists its options)", add_help=False)
    return parser


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning in one line, without the location in the code."""
    print(f"captioning: warning: {message}", file=file or sys.stderr)


def _exit_with_error(error: CaptioningError) -> NoReturn:
    print(f"captioning: error: {error}", file=sys.stderr)
    sys.exit(2)
