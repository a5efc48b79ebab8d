"""``captioning fit | validate | test | predict | cache-features``: LightningCLI with one-line errors, warm starts."""

import difflib
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI

from captioning import objectives
from captioning.models.checkpoint import read_model
from captioning.training.callbacks import PredictionWriter, SaveTrainingConfig, SeedEveryBatch
from captioning.training.checkpoint_io import ModelFileCheckpointIO, load_checkpoint, model_file_path
from captioning.training.datamodule import CaptionDataModule
from captioning.training.initialization import load_initial_weights
from captioning.training.module import CaptioningModule
from captioning.utils.errors import CaptioningError

_NOT_CONFIGURED = ("vocabulary_size", "feature_size", "num_locations")  # follow from the vocabulary and the encoder


class OneLineErrorParser(LightningArgumentParser):
    """Raises errors as one line, without the usage."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise CaptioningError(" ".join(message.split()))


class CaptioningCLI(LightningCLI):
    """Links the module and the data module, and takes the architecture from ``init_from`` or a checkpoint."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(PredictionWriter, "predictions")
        parser.link_arguments("data.vocabulary", "model.vocabulary", apply_on="instantiate")
        parser.link_arguments("model.init_from", "data.init_from")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        command, arguments = args[0], args if _is_lightning_command(args[0]) else args[1:]
        subparser = self._subcommand_parsers[command] if _is_lightning_command(command) else parser
        try:
            config = self._command_config(parser.parse_args(arguments))
            settings = _inherited_settings(command, config)
            if settings:
                # Settings that are not given take the values of the source. A second parse finds out which are given.
                subparser.set_defaults({f"model.{name}": value for name, value in _flatten(settings)})
            self.config = parser.parse_args(arguments)
        except CaptioningError as error:
            raise CaptioningError(_explain(str(error), args, subparser)) from None
        config = self._command_config(self.config)
        if config.get("ckpt_path") is not None:
            _check_against_checkpoint(config, settings)
            config.data.init_from = config.ckpt_path  # the vocabulary is the checkpoint's

    @staticmethod
    def _command_config(config: Any) -> Any:
        return config[config.subcommand] if "subcommand" in config else config

    def _parse_ckpt_path(self) -> None:
        """Disabled: parse_arguments takes the settings of the checkpoint. A test pins this private method."""

    def instantiate_classes(self) -> None:
        super().instantiate_classes()
        path = self._command_config(self.config).get("ckpt_path")
        if path is not None:
            # Lightning restores the weights later than the fingerprint of the feature cache requires the encoder's.
            load_initial_weights(path, self.model.encoder, self.model.decoder, self.model.vocabulary)

    def after_fit(self) -> None:
        checkpoint = self.trainer.checkpoint_callback
        if isinstance(checkpoint, ModelCheckpoint) and checkpoint.best_model_path and self.trainer.is_global_zero:
            value = checkpoint.best_model_score  # None if no validation was run
            score = f" ({checkpoint.monitor} {value:.4f})" if checkpoint.monitor and value is not None else ""
            best = _relative_path(checkpoint.best_model_path)
            print(f"best checkpoint{score}: {best}")
            print(f"model file: {model_file_path(best)}")
            print(f"try it: captioning caption IMAGE --model {model_file_path(best)} --overlay-dir DIR")

    def after_predict(self) -> None:
        writer = self._command_config(self.config_init)["predictions"]
        print(f"captions: {_relative_path(writer.path)}")


def _is_lightning_command(command: str) -> bool:
    return command != "cache-features"


def _inherited_settings(command: str, config: Any) -> dict[str, Any]:
    """Model settings of the checkpoint or of ``init_from``, nested as in the config; empty without either."""
    path, source = config.get("ckpt_path"), config.model.init_from
    if path is not None and source is not None:
        raise CaptioningError(
            f"ckpt_path {path} resumes a run and init_from {source} starts a new one: give only one of them "
            "(--model.init_from null disables that of a config)"
        )
    if path is not None:
        parameters = load_checkpoint(path)["hyper_parameters"]
        names = ("encoder", "decoder", "objective") if command == "fit" else ("encoder", "decoder")
        return {name: parameters[name] for name in names if parameters.get(name) is not None}
    if source is None:
        if command not in ("fit", "cache-features"):
            raise CaptioningError(f"'captioning {command}' requires a trained model: add --ckpt_path FILE.ckpt")
        return {}
    header = read_model(source).header
    decoder = {name: value for name, value in header["decoder"].items() if name not in _NOT_CONFIGURED}
    attention_mode = header["attention_mode"]
    inherited: dict[str, Any] = {"encoder": header["encoder"], "decoder": decoder, "generation": header["generation"]}
    return {**inherited, "attention_mode": attention_mode} if attention_mode is not None else inherited


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as ("decoder.hidden_size", 600). A class_path with its init_args stays one value."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and "class_path" not in value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _check_against_checkpoint(config: Any, settings: Mapping[str, Any]) -> None:
    """Refuse model settings that differ from those of the checkpoint, which has weights for its own settings only."""
    given = config.model.as_dict()
    for name, value in _flatten(settings):
        own: Any = given
        for part in name.split("."):
            own = own[part]
        if own != value:
            raise CaptioningError(
                f"model.{name} is {_short(own)}, but {_short(value)} in the checkpoint {config.ckpt_path}; omit the "
                "setting, or start a new run with --model.init_from instead of --ckpt_path"
            )


def _short(value: Any) -> str:
    return (
        value["class_path"].rpartition(".")[2] if isinstance(value, Mapping) and "class_path" in value else str(value)
    )


def _explain(message: str, arguments: Sequence[str], parser: LightningArgumentParser) -> str:
    """Shorten a message of the parser, and add the nearest setting or the possible values."""
    key = re.search(r'[Kk]ey "([\w.]+)"', message)
    rejected = re.search(r"Option '([\w.]+)' is not accepted", message)
    if key and rejected:
        command = f"captioning {arguments[0]} --{key[1]}.help CLASS"
        return f"{key[1]} has no setting '{rejected[1]}'; '{command}' lists its settings"
    if key and "Expected a dot import path" in message:
        value = message.rpartition("Given value: ")[2]
        return (
            f"{key[1]}: unknown class '{value}'; choose one of {', '.join(objectives.__all__)} or give an import path"
        )
    if key and "Given value: " in message:
        return f"{key[1]}: {_expected(message)}, got {message.rpartition('Given value: ')[2]}"
    named = re.search(r"(?:[Oo]ption '|unrecognized arguments: --|Key ')([\w.]+)", message)
    if named is None:
        return message
    from_file = "unrecognized arguments" not in message
    configs = [argument for argument in arguments if argument.endswith((".yaml", ".yml"))] if from_file else []
    close = difflib.get_close_matches(named[1], [action.dest for action in parser._actions], n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"'captioning {arguments[0]} --help' lists all settings"
    return f"{''.join(f'{config}: ' for config in configs)}{message}; {hint}"


def _expected(message: str) -> str:
    """What the parser expected, without the repetitions for the members of a union type."""
    parts = re.findall(r"Expected (?:a |an )?(.+?)(?= - | Given value|\.? Got|$)", message)
    names = {"<class 'int'>": "a whole number", "<class 'float'>": "a number", "<class 'NoneType'>": "null"}
    return (
        "expected " + " or ".join(dict.fromkeys(names.get(part, part) for part in parts)) if parts else "invalid value"
    )


def _relative_path(path: str | Path) -> Path:
    path = Path(path)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def main(arguments: Sequence[str]) -> None:
    """Run ``cache-features`` or one of Lightning's four subcommands."""
    _filter_warnings()
    torch.set_flush_denormal(True)  # denormal gradients make the first epochs three times as slow
    run = _is_lightning_command(arguments[0])
    cli = CaptioningCLI(
        CaptioningModule,
        CaptionDataModule,
        save_config_callback=SaveTrainingConfig,
        save_config_kwargs={"overwrite": True},  # a run that is resumed in its directory has a config already
        parser_class=OneLineErrorParser,
        parser_kwargs={"prog": "captioning"},
        seed_everything_default=0,
        trainer_defaults={
            "callbacks": [SeedEveryBatch()],
            "plugins": [{"class_path": f"{ModelFileCheckpointIO.__module__}.{ModelFileCheckpointIO.__name__}"}],
            "use_distributed_sampler": False,  # LengthGroupedBatchSampler divides the data among processes
        },
        auto_configure_optimizers=False,
        load_from_checkpoint_support=False,  # the module saves its settings as plain values
        run=run,
        args=list(arguments),
    )
    if not run:
        _cache_features(cli)


def _cache_features(cli: CaptioningCLI) -> None:
    cli.datamodule.trainer = cli.trainer  # its callbacks say which encoder blocks are trained
    device = cli.trainer.strategy.root_device
    cache = cli.datamodule.open_feature_cache(cli.model.encoder, device)
    if cache is None:
        raise CaptioningError(
            "features of an encoder that is trained cannot be cached: set model.encoder.frozen to true, and num_blocks "
            "of EncoderFinetuning if you use it"
        )
    print(f"features of {len(cache)} images: {_relative_path(cache.cache_dir)}")
    crops = cli.datamodule.open_crop_cache(cli.model.encoder, device)
    if crops is not None:
        print(f"features of {crops.num_views} crops of {len(crops)} images: {_relative_path(crops.cache_dir)}")


def _filter_warnings() -> None:
    """Hide Lightning's tips on other products, and warnings that do not apply."""
    for name in ("pytorch_lightning.utilities.rank_zero", "lightning_fabric.utilities.rank_zero"):
        logging.getLogger(name).addFilter(lambda record: "Tip:" not in record.getMessage())
    for message in (
        ".*does not have many workers.*",  # with few cores, workers slow the training down
        ".*custom batch sampler.*",  # LengthGroupedBatchSampler yields every image once
        ".*is smaller than the logging interval.*",
        ".*in eval mode at the start of training.*",  # intended for a frozen encoder
        ".*LeafSpec.*is deprecated.*",
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*WeightAveraging state cannot be restored.*",  # the weights of the checkpoint are the averaged ones
    ):
        warnings.filterwarnings("ignore", message=message)
