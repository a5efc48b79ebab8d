"""Checks of the training commands that need neither torch nor Lightning, whose import takes seconds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from captioning.datasets import resolve_root
from captioning.models.pretrained import check_model_exists
from captioning.utils.errors import CaptioningError


def check_arguments(arguments: Sequence[str]) -> int | None:
    """Check that the files and directories of a command exist. A full check of all settings follows later.

    Returns:
        The setting ``threads``; None if it is not given.
    """
    given = _options(arguments[1:])
    if given.keys() & {"help", "print_config"}:
        return None
    config: dict[str, Any] = {}
    for path in given.get("config", []):
        config |= _flatten(_load_config(Path(path)))
    config |= {name: values[-1] for name, values in given.items()}
    ckpt_path, init_from = (_none_if_null(config.get(name)) for name in ("ckpt_path", "model.init_from"))
    if ckpt_path is not None and not Path(ckpt_path).is_file():
        raise CaptioningError(f"{ckpt_path}: checkpoint not found; 'captioning fit' writes them to its run directory")
    if init_from is not None:
        check_model_exists(init_from)
    _check_root(config)
    threads = _none_if_null(config.get("threads"))
    try:
        return None if threads is None else int(threads)
    except ValueError:
        raise CaptioningError(f"threads: expected a whole number, got '{threads}'") from None


def _check_root(config: Mapping[str, Any]) -> None:
    roots = config.get("data.root")
    if roots is None or str(config.get("data.num_scenes", 0)) != "0":  # missing scenes are generated
        return
    for root in roots if isinstance(roots, list) else [roots]:
        if isinstance(root, str) and not root.startswith("[") and not resolve_root(Path(root)).exists():
            raise CaptioningError(f"{root}: no such directory; check data.root and CAPTIONING_DATA_DIR")


def _options(arguments: Sequence[str]) -> dict[str, list[str]]:
    """The values of all options: ``--name value`` and ``--name=value``."""
    options: dict[str, list[str]] = {}
    for position, argument in enumerate(arguments):
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            following = arguments[position + 1] if position + 1 < len(arguments) else ""
            options.setdefault(name, []).append(value if equals else following)
    return options


def _load_config(path: Path) -> Mapping[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CaptioningError(f"{path}: config does not exist; configs/ contains the recipes") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise CaptioningError(f"{path}: cannot be read as YAML ({reason})") from None
    if not isinstance(config, Mapping):
        raise CaptioningError(f"{path}: not a config; expected YAML with keys such as 'model', 'data' and 'trainer'")
    return config


def _flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of ``model`` and ``data`` as ``model.init_from``, and the others as they are."""
    flat = {str(name): value for name, value in config.items()}
    for group in ("model", "data"):
        if isinstance(config.get(group), Mapping):
            flat |= {f"{group}.{name}": value for name, value in config[group].items()}
    return flat


def _none_if_null(value: Any) -> Any:
    return None if value in ("null", "None") else value
