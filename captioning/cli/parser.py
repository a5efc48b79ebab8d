"""Argument parser whose errors are one line that names the nearest option or command."""

import argparse
import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from captioning.utils.errors import CaptioningError

_TYPE_NAMES = {"int": "a whole number", "float": "a number"}


class Parser(argparse.ArgumentParser):
    """Raises CaptioningError instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        if match := re.fullmatch(r"argument (.*): invalid (int|float) value: (.*)", message):
            message = f"{match[1]}: expected {_TYPE_NAMES[match[2]]}, got {match[3]}"
        message = message.removeprefix("argument ")
        raise CaptioningError(f"{message}; '{self.prog} --help' lists the options")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments. The parser of the command reports an unknown option with the most similar one."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flag = unknown[0].partition("=")[0]
            raise CaptioningError(
                f"unknown option {flag}{_suggest(flag, list(self._option_string_actions))}; "
                f"'{self.prog} --help' lists the options"
            )
        return options, unknown


def check_command(name: str, commands: Sequence[str]) -> None:
    """Raise CaptioningError for an unknown command, with the nearest one."""
    if name.startswith("-") or name in commands:
        return
    hint = f" (did you mean 'captioning caption {name}'?)" if Path(name).exists() else _suggest(name, commands)
    raise CaptioningError(f"unknown command '{name}'{hint}; 'captioning --help' lists the commands")


def with_flag_names(message: str, options: argparse.Namespace) -> str:
    """Replace names of settings in a message by the flags of the command, do_sample by --do-sample."""
    names = [name for name in vars(options) if "_" in name]
    for name in sorted(names, key=len, reverse=True):
        message = re.sub(rf"(?<![-\w./\\]){name}(?![-\w=./\\]\w)(?![\w/\\])", "--" + name.replace("_", "-"), message)
    return message


def _suggest(name: str, choices: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(name, choices, n=1)
    return f" (did you mean {nearest[0]}?)" if nearest else ""
