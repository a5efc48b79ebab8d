"""``captioning fit | validate | test | predict | cache-features``: LightningCLI with one-line errors, warm starts."""

import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.trainer.states import TrainerStatus
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from captioning.training.callbacks import CheckMonitors, PredictionWriter, SaveTrainingConfig, SeedEveryBatch
from captioning.training.checkpoint_io import ModelFileCheckpointIO, model_file_path
from captioning.training.config_checks import check_config
from captioning.training.config_errors import OneLineErrorParser, explain, one_line
from captioning.training.config_sources import check_against_checkpoint, flatten, inherited_settings
from captioning.training.datamodule import CaptionDataModule
from captioning.training.initialization import load_initial_weights
from captioning.training.module import CaptioningModule
from captioning.training.run_directory import continue_in_run_directory, keep_metrics, resume_advice, run_directory
from captioning.training.validation import format_metrics
from captioning.utils.errors import CaptioningError
from captioning.utils.threads import THREADS_HELP


class CaptioningCLI(LightningCLI):
    """Links the module and the data module, and takes the architecture from ``init_from`` or a checkpoint."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(PredictionWriter, "predictions")
        parser.add_argument("--threads", type=int | None, default=None, help=THREADS_HELP)
        parser.link_arguments("data.vocabulary", "model.vocabulary", apply_on="instantiate")
        parser.link_arguments("model.init_from", "data.init_from")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        command, arguments = args[0], args if _is_trainer_command(args[0]) else args[1:]
        subparser = self._subcommand_parsers[command] if _is_trainer_command(command) else parser
        try:
            config = self._command_config(parser.parse_args(arguments))
            path, source = config.get("ckpt_path"), config.model.init_from
            if path is not None and source is not None and any(arg.startswith("--model.init_from") for arg in args):
                raise CaptioningError(
                    f"ckpt_path {path} resumes a run and init_from {source} starts a new one: give only one of them "
                    "on the command line"
                )
            settings = inherited_settings(command, config)
            if settings:
                # Settings that are not given take the values of the source. A second parse finds out which are given.
                subparser.set_defaults({f"model.{name}": value for name, value in flatten(settings)})
            self.config = parser.parse_args(arguments)
        except CaptioningError as error:
            raise CaptioningError(explain(str(error), args, subparser)) from None
        config = self._command_config(self.config)
        if config.get("ckpt_path") is not None:
            check_against_checkpoint(config, settings)
            # The vocabulary is the checkpoint's. model.init_from stays, since Distillation checks that it is set.
            config.data.init_from = config.ckpt_path
            if command == "fit":
                continue_in_run_directory(config)
        if command != "fit":
            config.trainer.logger = False  # otherwise each evaluation leaves a version directory
            if config.predictions.path is None and config.get("ckpt_path") is not None:
                config.predictions.path = (run_directory(config.ckpt_path) or Path()) / "predictions.jsonl"
        check_config(config, settings)

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

    def fit(self, **arguments: Any) -> None:
        """Train; Ctrl-C prints how to resume."""
        checkpoint, path = self.trainer.checkpoint_callback, arguments.get("ckpt_path")
        if path is not None and self.trainer.is_global_zero:
            keep_metrics(self.trainer.logger, path)
        try:
            self.trainer.fit(**arguments)
        except SystemExit:  # Lightning replaces KeyboardInterrupt
            if self.trainer.state.status != TrainerStatus.INTERRUPTED or not isinstance(checkpoint, ModelCheckpoint):
                raise
            if self.trainer.is_global_zero:
                print("\n".join(resume_advice(_relative_path(checkpoint.dirpath or "."))), file=sys.stderr)
            sys.exit(130)

    def after_fit(self) -> None:
        checkpoint = self.trainer.checkpoint_callback
        if isinstance(checkpoint, ModelCheckpoint) and checkpoint.best_model_path and self.trainer.is_global_zero:
            value = checkpoint.best_model_score  # None if no validation was run
            score = f" ({checkpoint.monitor} {value:.4f})" if checkpoint.monitor and value is not None else ""
            best = _relative_path(checkpoint.best_model_path)
            print(f"best checkpoint{score}: {best}")
            print(f"model file: {model_file_path(best)}")
            print(f"try it: captioning caption IMAGE --model {model_file_path(best)} --overlay-dir DIR")
            print(f"curves: captioning plot {best.parent.parent}")

    def after_validate(self) -> None:
        self._print_metrics("val")

    def after_test(self) -> None:
        self._print_metrics("test")

    def _print_metrics(self, stage: str) -> None:
        if self.trainer.is_global_zero and len(self.datamodule.datasets) > 1:
            values = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
            print(format_metrics(values, stage))

    def after_predict(self) -> None:
        writer = self._command_config(self.config_init)["predictions"]
        print(f"captions: {_relative_path(writer.path)}")


def _is_trainer_command(command: str) -> bool:
    return command != "cache-features"


def _relative_path(path: str | Path) -> Path:
    path = Path(path)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def main(arguments: Sequence[str]) -> None:
    """Run ``cache-features`` or one of Lightning's four subcommands."""
    _filter_warnings(arguments[0])
    torch.set_flush_denormal(True)  # denormal gradients make the first epochs three times as slow
    run = _is_trainer_command(arguments[0])
    try:
        cli = _make_cli(arguments, run)
        if not run:
            _cache_features(cli)
    except (MisconfigurationException, UnicodeDecodeError) as error:
        raise CaptioningError(one_line(error)) from None
    except RuntimeError as error:
        if "conditioned on metric" not in str(error):
            raise
        raise CaptioningError(
            "EarlyStopping: the run ended before the first validation; raise trainer.max_steps or lower "
            "trainer.val_check_interval"
        ) from None
    except OSError as error:
        if error.filename is None:
            raise
        raise CaptioningError(f"{error.filename}: {error.strerror}; check the path and its permissions") from None


def _make_cli(arguments: Sequence[str], run: bool) -> CaptioningCLI:
    """Parse the arguments and, with ``run``, run the command."""

    class SingleCommandCLI(CaptioningCLI):
        """Builds the parser of the given command only, which takes a fraction of a second."""

        @staticmethod
        def subcommands() -> dict[str, set[str]]:
            return {name: skipped for name, skipped in LightningCLI.subcommands().items() if name == arguments[0]}

    return SingleCommandCLI(
        CaptioningModule,
        CaptionDataModule,
        save_config_callback=SaveTrainingConfig,
        save_config_kwargs={"overwrite": True},  # a run that is resumed in its directory has a config already
        parser_class=OneLineErrorParser,
        parser_kwargs={"prog": "captioning"},
        seed_everything_default=0,
        trainer_defaults={
            "callbacks": [SeedEveryBatch(), CheckMonitors()],
            "plugins": [{"class_path": f"{ModelFileCheckpointIO.__module__}.{ModelFileCheckpointIO.__name__}"}],
            "use_distributed_sampler": False,  # LengthGroupedBatchSampler divides the data among processes
        },
        auto_configure_optimizers=False,
        load_from_checkpoint_support=False,  # the module saves its settings as plain values
        run=run,
        args=list(arguments),
    )


def _cache_features(cli: CaptioningCLI) -> None:
    cli.datamodule.trainer = cli.trainer  # its callbacks determine which encoder blocks are trained
    device = cli.trainer.strategy.root_device
    cache = cli.datamodule.open_feature_cache(cli.model.encoder, device)
    if cache is None:
        raise CaptioningError(
            "features of an encoder that is trained cannot be cached: set model.encoder.frozen to true, and num_blocks "
            "of EncoderFinetuning if you use it"
        )
    print(f"features of {len(cli.datamodule.records)} images: {_relative_path(cache.cache_dir)}")


def _filter_warnings(command: str) -> None:
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
        ".*Experiment logs directory .* exists and is not empty.*",  # keep_metrics keeps the metrics of the run
        ".*WeightAveraging state cannot be restored.*",  # the weights of the checkpoint are the averaged ones
    ):
        warnings.filterwarnings("ignore", message=message)
    if command != "fit":  # writes no checkpoints
        warnings.filterwarnings("ignore", message=".*The dirpath has changed from.*")
