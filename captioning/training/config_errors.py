"""Messages of the config parser in one line: the setting, what was expected, and what to do next."""

import dataclasses
import difflib
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
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
        parser: parser of the command, with all its settings.
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
            hint = _accepted_settings(rejected[1], arguments) or f"'{command}' lists its settings"
            return f"{_source(arguments, rejected[1])}{key[1]} has no setting '{rejected[1]}'; {hint}"
        if unknown := re.search(r"Expected a dot import path string: ([\w.]+)", message):
            nested = re.search(r"NestedArg\(key='(\w+)'", message)
            return _unknown_class(f"{key[1]}.{nested[1]}" if nested else key[1], unknown[1], arguments)
        if missing := re.search(r"the following arguments are required: ([\w, ]+?)(?= - |$)", message):
            class_path = re.search(r"class_path='([\w.]+)'", message)
            name = class_path[1].rpartition(".")[2] if class_path else key[1]
            return f"{setting}: {name} requires the setting {missing[1]}"
        if given:
            return f"{setting}: {_expected(message)}, not {given[1]}"
    named = re.search(r"(?:[Oo]ption '|unrecognized arguments: --|Key ')([\w.]+)", message)
    if named is None:
        return message
    if rejected and (accepted := _accepted_settings(named[1], arguments)):
        return f"{_source(arguments, named[1])}unknown setting '{named[1]}'; {accepted}"
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


def _unknown_class(setting: str, name: str, arguments: Sequence[str]) -> str:
    """The message for a class that does not exist, with those that the setting accepts without an import path."""
    if setting == "model.objective":
        names = _class_names(objectives, objectives.Objective)
    elif setting.endswith(".estimator"):
        names = _class_names(objectives, objectives.GradientEstimator)
    elif setting == "model.optimizer":
        names = _class_names(torch.optim, torch.optim.Optimizer)
    else:
        names = []
    close = difflib.get_close_matches(name, names, n=1)
    choices = f"did you mean '{close[0]}'? Otherwise choose" if close else "choose"
    options = f"one of {', '.join(names)} or give an import path" if names else "a class by its import path"
    return f"{_source(arguments, setting)}{setting}: unknown class '{name}'; {choices} {options}"


def _class_names(module: Any, base: type) -> list[str]:
    """Names of the concrete subclasses that a module exports."""
    classes = (getattr(module, name) for name in getattr(module, "__all__", dir(module)))
    return [
        cls.__name__
        for cls in classes
        if inspect.isclass(cls) and issubclass(cls, base) and cls is not base and not inspect.isabstract(cls)
    ]


def _accepted_settings(setting: str, arguments: Sequence[str]) -> str | None:
    """The settings of the class that was given an unknown one; None if the class is not found."""
    class_path = _class_with_setting(setting, arguments)
    if class_path is None:
        return None
    module, _, name = class_path.rpartition(".")
    try:
        parameters = inspect.signature(getattr(importlib.import_module(module or objectives.__name__), name)).parameters
    except (ImportError, AttributeError, ValueError):
        return None
    # An optimizer has its parameters, and a scheduler its optimizer, from the training.
    names = ", ".join(parameter for parameter in parameters if parameter not in ("params", "optimizer"))
    return f"{name} has the settings {names}" if names else f"{name} has no settings"


def _class_with_setting(setting: str, arguments: Sequence[str]) -> str | None:
    """The class_path beside a setting in the configs or in a value of a flag, or that of the group of the flag."""
    configs = [yaml.safe_load(Path(config).read_text(encoding="utf-8")) for config in _configs(arguments)]
    values = [yaml.safe_load(argument) for argument in arguments if argument.startswith(("{", "["))]
    for mapping in _class_mappings([*configs, *values]):
        if setting in (mapping.get("init_args") or {}):
            return str(mapping["class_path"])
    names = [argument.partition("=")[0].removeprefix("--").replace(".init_args", "") for argument in arguments]
    group = next((name.removesuffix(f".{setting}") for name in names if name.endswith(f".{setting}")), None)
    if group is None:
        return None
    flags = [value for name, value in itertools.pairwise(arguments) if name == f"--{group}"]
    flags += [argument.partition("=")[2] for argument in arguments if argument.startswith(f"--{group}=")]
    return flags[-1] if flags else next(filter(None, (_class_at(config, group) for config in configs)), None)


def _class_mappings(value: Any) -> Iterator[dict[str, Any]]:
    """All mappings with a class_path in nested settings."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    if isinstance(value, dict) and "class_path" in value:
        yield value
    for child in children:
        yield from _class_mappings(child)


def _class_at(config: Any, name: str) -> str | None:
    """The class_path of a group of settings such as ``model.objective``."""
    for part in name.split("."):
        config = config.get("init_args", config) if isinstance(config, dict) else {}
        config = config.get(part)
    return config.get("class_path") if isinstance(config, dict) else None


def _configs(arguments: Sequence[str]) -> list[str]:
    return [value for option, value in itertools.pairwise(arguments) if option in ("--config", "-c")]


def _source(arguments: Sequence[str], name: str) -> str:
    """The configs, if the setting is not on the command line."""
    given = [argument.partition("=")[0].removesuffix("+") for argument in arguments]
    in_value = any(argument.startswith(("{", "[")) and name in argument for argument in arguments)
    on_command_line = in_value or any(argument == f"--{name}" or argument.endswith(f".{name}") for argument in given)
    return "" if on_command_line else "".join(f"{config}: " for config in _configs(arguments))


def _expected(message: str) -> str:
    """What the parser expected, without the repetitions for the members of a union type."""
    parts = re.findall(r"Expected (?:a |an )?(.+?)(?= - | Given value|\.? Got|$)", message)
    parts = [re.sub(r"typing\.Literal\[(.*)\]", r"one of \1", part) for part in parts]
    names = dict.fromkeys(_TYPE_NAMES.get(part, part) for part in parts)
    return f"expected {' or '.join(names)}" if names else "invalid value"


def one_line(error: BaseException) -> str:
    """The message of an error without line breaks."""
    return " ".join(str(error).split())
