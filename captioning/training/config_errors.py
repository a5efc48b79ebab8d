"""Messages of the config parser in one line: the setting, what was expected, and what to do next."""

import dataclasses
import difflib
import itertools
import re
from collections.abc import Sequence
from typing import NoReturn

from pytorch_lightning.cli import LightningArgumentParser

from captioning import objectives
from captioning.datasets.mixture import DatasetConfig
from captioning.utils.errors import CaptioningError

_TYPE_NAMES = {
    "<class 'int'>": "a whole number",
    "<class 'float'>": "a number",
    "<class 'bool'>": "true or false",
    "<class 'str'>": "text",
    "<class 'NoneType'>": "null",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "NoneType": "null",
}


class OneLineErrorParser(LightningArgumentParser):
    """Raises errors as one line, without the usage."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise CaptioningError(" ".join(message.split()))


def explain(message: str, arguments: Sequence[str], parser: LightningArgumentParser) -> str:
    """Shorten a message of the parser, and add the nearest setting or the possible values.

    Args:
        message: message of jsonargparse in one line.
        arguments: the command and its options.
        parser: parser of the command, which knows all settings.
    """
    key = re.search(r'[Kk]ey "([\w.]+)"', message)
    given = re.search(r"(?:Given|Got) value: (.*)", message)
    rejected = re.search(r"Option '([\w.]+)' is not accepted", message)
    if key:
        setting = f"{_source(arguments, key[1])}{key[1]}"
        if rejected and key[1].startswith("data.root"):
            names = ", ".join(field.name for field in dataclasses.fields(DatasetConfig))
            return f"{setting} has no setting '{rejected[1]}'; choose from {names}"
        if rejected:
            command = f"captioning {arguments[0]} --{key[1]}.help CLASS"
            return f"{setting} has no setting '{rejected[1]}'; '{command}' lists its settings"
        if "Expected a dot import path" in message:
            names = ", ".join(objectives.__all__)
            return (
                f"{setting}: unknown class '{given[1] if given else ''}'; choose one of {names} or give an import path"
            )
        if given:
            return f"{setting}: {_expected(message)}, not {given[1]}"
    named = re.search(r"(?:[Oo]ption '|unrecognized arguments: --|Key ')([\w.]+)", message)
    if named is None:
        return message
    suggestion = _nearest(named[1], [action.dest for action in parser._actions if not action.dest.endswith(".help")])
    hint = f"did you mean '{suggestion}'?" if suggestion else f"'captioning {arguments[0]} --help' lists all settings"
    return f"{_source(arguments, named[1])}unknown setting '{named[1]}'; {hint}"


def _nearest(name: str, known: Sequence[str]) -> str | None:
    """The known setting, or group of settings such as ``trainer``, that is most similar to a name."""
    groups = {known_name.rpartition(".")[0] for known_name in known} - {""}
    group, _, rest = name.partition(".")
    if group not in groups and (close := difflib.get_close_matches(group, groups, n=1)):
        return f"{close[0]}.{rest}" if f"{close[0]}.{rest}" in known else close[0]
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def _source(arguments: Sequence[str], name: str) -> str:
    """The configs, if the setting is not on the command line."""
    on_command_line = any(argument.partition("=")[0] in (f"--{name}", f"--{name}+") for argument in arguments)
    configs = [value for option, value in itertools.pairwise(arguments) if option in ("--config", "-c")]
    return "" if on_command_line else "".join(f"{config}: " for config in configs)


def _expected(message: str) -> str:
    """What the parser expected, without the repetitions for the members of a union type."""
    parts = re.findall(r"Expected (?:a |an )?(.+?)(?= - | Given value|\.? Got|$)", message)
    names = dict.fromkeys(_TYPE_NAMES.get(part, part) for part in parts)
    return f"expected {' or '.join(names)}" if names else "invalid value"


def one_line(error: BaseException) -> str:
    """The message of an error without line breaks."""
    return " ".join(str(error).split())
