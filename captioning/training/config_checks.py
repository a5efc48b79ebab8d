"""Checks of a whole config before data are read, scenes are generated or features are computed."""

import importlib
import importlib.util
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl
import torch

from captioning.generation import GenerationConfig
from captioning.models.attention import check_attention_mode
from captioning.models.decoder_config import DecoderConfig
from captioning.models.encoder import EncoderConfig
from captioning.training.config_errors import one_line
from captioning.utils.errors import CaptioningError

_HARDWARE = ("accelerator", "devices", "num_nodes", "strategy", "precision")


def check_config(config: Any, inherited: Mapping[str, Any]) -> None:
    """Validate a config by building its settings, objective, callbacks, and a trainer without loggers.

    Args:
        config: config of the command.
        inherited: model settings of a checkpoint or ``init_from``, which the user did not give.
    """
    settings = config.as_dict()
    model, trainer = settings["model"], settings["trainer"]
    EncoderConfig(**model["encoder"])
    decoder = DecoderConfig(**model["decoder"])
    check_attention_mode(model["attention_mode"], decoder.attention == "hard")
    stored = inherited.get("generation", {})
    given = [name for name, value in model["generation"].items() if name not in stored or stored[name] != value]
    GenerationConfig(**model["generation"]).check_effect(given)
    _instantiate(model["objective"])
    _instantiate(trainer["callbacks"])
    _check_loggers(trainer["logger"])
    hardware = {name: trainer[name] for name in _HARDWARE if not isinstance(trainer[name], Mapping)}
    try:
        with _without_messages():
            pl.Trainer(**hardware, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    except (TypeError, ValueError) as error:
        values = ", ".join(f"{name} {value}" for name, value in hardware.items() if value is not None)
        raise CaptioningError(f"trainer: {one_line(error)} ({values})") from None
    _check_optimizer(model["optimizer"])  # last: it imports torch._dynamo, which takes a second


def _instantiate(value: Any) -> Any:
    """Instantiate ``class_path`` and ``init_args``, which may be nested, or a list of them."""
    if isinstance(value, list):
        return [_instantiate(item) for item in value]
    if not isinstance(value, Mapping) or "class_path" not in value:
        return value
    arguments = {key: _instantiate(item) for key, item in (value.get("init_args") or {}).items()}
    return _class(value)(**arguments)


def _class(value: Mapping[str, Any]) -> Any:
    module, _, name = value["class_path"].rpartition(".")
    return getattr(importlib.import_module(module), name)


def _check_optimizer(value: Any) -> None:
    """Build the optimizer for one parameter. A callable, which Python code may give, is not checked."""
    if isinstance(value, Mapping) and "class_path" in value:
        parameters = [torch.nn.Parameter(torch.zeros(1))]
        try:
            _class(value)(parameters, **(value.get("init_args") or {}))
        except (TypeError, ValueError) as error:
            raise CaptioningError(f"model.optimizer: {one_line(error)}") from None


def _check_loggers(loggers: Any) -> None:
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        is_tensorboard = isinstance(logger, Mapping) and logger.get("class_path", "").endswith("TensorBoardLogger")
        if is_tensorboard and not any(map(importlib.util.find_spec, ("tensorboard", "tensorboardX"))):
            raise CaptioningError("TensorBoardLogger requires tensorboard: pip install 'captioning[tensorboard]'")


@contextmanager
def _without_messages() -> Iterator[None]:
    """Hide the messages on available devices, which the trainer of the run repeats."""
    logger = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled
