"""Model settings that a run takes from a checkpoint or from ``init_from``."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from captioning.models.checkpoint import read_model
from captioning.training.checkpoint_io import load_checkpoint
from captioning.training.run_directory import run_directory
from captioning.utils.errors import CaptioningError

_NOT_CONFIGURED = ("vocabulary_size", "feature_size", "num_locations")  # follow from the vocabulary and the encoder
_ADJUSTABLE = ("generation", "attention_mode")  # the weights do not depend on them
_OPTIMIZATION = ("optimizer", "lr_scheduler")
_COMMANDS_WITHOUT_CHECKPOINT = ("fit", "cache-features")


def inherited_settings(command: str, config: Any) -> dict[str, Any]:
    """Model settings of the checkpoint, otherwise of ``init_from``, nested as in the config; empty without either."""
    path, source = config.get("ckpt_path"), config.model.init_from
    if path is not None:
        checkpoint = load_checkpoint(path)
        parameters = checkpoint["hyper_parameters"]
        names = ("encoder", "decoder", "objective") if command == "fit" else ("encoder", "decoder")
        settings = {name: parameters[name] for name in names if parameters.get(name) is not None}
        return settings | _adjustable_settings(checkpoint["model_header"])
    if source is None:
        if command not in _COMMANDS_WITHOUT_CHECKPOINT:
            raise CaptioningError(f"'captioning {command}' requires a trained model: add --ckpt_path FILE.ckpt")
        return {}
    header = read_model(source).header
    decoder = {name: value for name, value in header["decoder"].items() if name not in _NOT_CONFIGURED}
    return {"encoder": header["encoder"], "decoder": decoder} | _adjustable_settings(header)


def _adjustable_settings(header: Mapping[str, Any]) -> dict[str, Any]:
    return {name: header[name] for name in _ADJUSTABLE if header[name] is not None}


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings as (dotted name, value), e.g. ("decoder.hidden_size", 600).

    A mapping with a class_path is one value.
    """
    for name, value in settings.items():
        if isinstance(value, Mapping) and "class_path" not in value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def check_against_checkpoint(config: Any, settings: Mapping[str, Any]) -> None:
    """Refuse model settings that differ from those of the checkpoint, which has weights for its own settings only."""
    given = config.model.as_dict()
    different = []
    for name, value in flatten(settings):
        given_value: Any = given
        if name.partition(".")[0] in _ADJUSTABLE:
            continue
        for part in name.split("."):
            given_value = given_value[part]
        if given_value != value:
            different.append(f"model.{name} is {_short(given_value)}, but {_short(value)} in the checkpoint")
    run = run_directory(config.ckpt_path)
    stored = {} if run is None else yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["model"]
    for name in _OPTIMIZATION:  # the checkpoint contains their state
        if name in stored and _to_json(given[name]) != _to_json(stored[name]):
            different.append(f"model.{name} differs from that in the checkpoint")
    if different:
        raise CaptioningError(
            f"{'; '.join(different)} {config.ckpt_path}; omit {'them' if len(different) > 1 else 'the setting'}, or "
            "start a new run with --model.init_from instead of --ckpt_path"
        )


def _to_json(value: Any) -> str:
    """A text that is equal for equal settings, whether they are tuples or lists."""
    return json.dumps(value, sort_keys=True, default=str)


def _short(value: Any) -> str:
    return (
        value["class_path"].rpartition(".")[2] if isinstance(value, Mapping) and "class_path" in value else str(value)
    )
