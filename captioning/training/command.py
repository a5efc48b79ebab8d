"""``captioning fit | validate | test | predict``: LightningCLI without its traps."""

import difflib
import logging
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from jsonargparse.typing import PositiveInt
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI

from captioning import faithfulness_report
from captioning.errors import CaptioningError
from captioning.training.callbacks import PredictionWriter, SaveTrainingConfig, StepSeed
from captioning.training.checkpoints import CheckpointWithModel, model_path, read_checkpoint
from captioning.training.data import CaptioningData
from captioning.training.module import CaptioningModule

_MEASURED = ("validate", "test")  # what maps can be checked by


class OneLineParser(LightningArgumentParser):
    """Says what is wrong in one line, where LightningCLI prints pages of usage first."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise CaptioningError(" ".join(message.split()))


class CaptioningCLI(LightningCLI):
    """Joins the module and its data; their shared numbers are linked here, and given once."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(PredictionWriter, "predictions")
        parser.link_arguments("data.vocabulary", "model.vocabulary", apply_on="instantiate")

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand in _MEASURED:
            parser.add_argument(
                "--maps",
                action="store_true",
                help="check also whether maps are honest: how much words fall when what they looked at is covered",
            )
            parser.add_argument(
                "--maps_pictures",
                type=PositiveInt,
                default=100,
                help="pictures of the split to check maps on, the first",
            )
            parser.add_argument(
                "--maps_plot",
                type=Path | None,
                default=None,
                help="the plot, with its figures beside it in JSON; by default beside the checkpoint",
            )
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        lightnings_own = args[0] != "features"
        try:
            self.config = parser.parse_args(args if lightnings_own else args[1:])
        except CaptioningError as error:
            of_subcommand = self._subcommand_parsers[args[0]] if lightnings_own else parser
            raise CaptioningError(_explain(str(error), args, of_subcommand)) from None
        if lightnings_own:
            self._take_over_checkpoint(self.config.subcommand, self.config[self.config.subcommand])

    @staticmethod
    def _take_over_checkpoint(subcommand: str, config: Any) -> None:
        """A checkpoint brings its own settings and vocabulary: those of the config would not fit its weights."""
        path = config.get("ckpt_path")
        if path is None:
            if subcommand != "fit":
                raise CaptioningError(f"'captioning {subcommand}' needs a trained model: add --ckpt_path FILE.ckpt")
            if config.model.begin_with is not None:
                config.data.vocabulary_from = config.model.begin_with
            return
        config.data.vocabulary_from = path
        config.model.begin_with = path  # Lightning restores weights later than the feature cache wants the encoder's
        for name, value in read_checkpoint(path)["hyper_parameters"].items():
            config.model[name] = value

    def _parse_ckpt_path(self) -> None:
        """Done by now: Lightning would parse the settings again, and refuse those that are linked."""

    def after_fit(self) -> None:
        checkpoint = self.trainer.checkpoint_callback
        if isinstance(checkpoint, ModelCheckpoint) and checkpoint.best_model_path and self.trainer.is_global_zero:
            value = checkpoint.best_model_score  # None if there was no validation to monitor
            score = f" ({checkpoint.monitor} {value:.4f})" if checkpoint.monitor and value is not None else ""
            best = _short(checkpoint.best_model_path)
            print(f"best checkpoint{score}: {best}")
            print(f"model file: {model_path(best)}")
            print(f"try it: captioning caption PICTURE --model {model_path(best)} --overlay DIR")

    def after_validate(self) -> None:
        self._check_maps("val")

    def after_test(self) -> None:
        self._check_maps("test")

    def _check_maps(self, split: str) -> None:
        if not self._get(self.config_init, "maps") or not self.trainer.is_global_zero:
            return
        checkpoint = Path(self._get(self.config_init, "ckpt_path"))
        plot = self._get(self.config_init, "maps_plot") or checkpoint.with_name(f"{checkpoint.stem}-maps-{split}.png")
        records = [record for record in self.datamodule.records if record.split == split]
        records = records[: self._get(self.config_init, "maps_pictures")]
        captioner = self.model.to(self.trainer.strategy.root_device).captioner()  # Lightning has left it on the CPU
        reports = {checkpoint.stem: faithfulness_report.check(captioner, records)}
        print(faithfulness_report.table(reports), flush=True)
        for path in faithfulness_report.write(plot, reports):
            print(f"maps: {_short(path)}")

    def after_predict(self) -> None:
        writer = self._get(self.config_init, "predictions")
        print(f"captions: {_short(writer.path)}")


def _explain(message: str, arguments: Sequence[str], parser: LightningArgumentParser) -> str:
    """Name the config that the parser complains of, and what the user may have meant."""
    on_command_line = "unrecognized arguments" in message or "File does not exist" in message
    configs = [] if on_command_line else [argument for argument in arguments if argument.endswith((".yaml", ".yml"))]
    named = re.search(r"(?:option '|unrecognized arguments: --)([\w.]+)", message)
    close = difflib.get_close_matches(named[1], [action.dest for action in parser._actions], n=1) if named else []
    cure = f"did you mean '{close[0]}'?" if close else f"'captioning {arguments[0]} --help' lists what there is"
    return f"{''.join(f'{config}: ' for config in configs)}{message}; {cure}"


def _short(path: str | Path) -> Path:
    path = Path(path)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def run(arguments: Sequence[str]) -> None:
    """Run ``features`` or one of Lightning's four subcommands."""
    _silence()
    lightnings_own = arguments[0] != "features"
    torch.set_flush_denormal(True)  # gradients too small to count would make the first epochs three times as slow
    cli = CaptioningCLI(
        CaptioningModule,
        CaptioningData,
        save_config_callback=SaveTrainingConfig,
        save_config_kwargs={"overwrite": True},  # a run that is resumed in its folder has a config there already
        parser_class=OneLineParser,
        parser_kwargs={"prog": "captioning"},
        seed_everything_default=0,
        trainer_defaults={
            "callbacks": [StepSeed()],
            "plugins": [{"class_path": f"{CheckpointWithModel.__module__}.{CheckpointWithModel.__name__}"}],
            "use_distributed_sampler": False,  # LikeLengthBatches gives each process its share
        },
        auto_configure_optimizers=False,
        load_from_checkpoint_support=False,  # the module keeps its own settings, in plain values
        run=lightnings_own,
        args=list(arguments),
    )
    if not lightnings_own:
        cli.datamodule.trainer = cli.trainer  # whose callbacks say what of the encoder will learn
        device = cli.trainer.strategy.root_device
        cached = cli.datamodule.cache(cli.model.encoder, device)
        if cached is None:
            raise CaptioningError(
                "a trained encoder has no lasting features: set model.train_encoder to false, "
                "and tell FineTuneEncoder, if you have it, how many blocks learn"
            )
        print(f"features of {len(cached)} pictures: {_short(cached.folder)}")
        crops = cli.datamodule.cache_crops(cli.model.encoder, device)
        if crops is not None:
            print(f"features of {crops.copies} crops of {len(crops)} pictures: {_short(crops.folder)}")


def _silence() -> None:
    """Lightning's tips about other products, and warnings that are wrong here."""
    for name in ("pytorch_lightning.utilities.rank_zero", "lightning_fabric.utilities.rank_zero"):
        logging.getLogger(name).addFilter(lambda record: "Tip:" not in record.getMessage())
    for message in (
        ".*does not have many workers.*",  # on few cores, workers fight with training
        ".*custom batch sampler.*",  # ours gives every picture once
        ".*is smaller than the logging interval.*",
        ".*in eval mode at the start of training.*",  # a frozen encoder is meant to be
        ".*LeafSpec.*is deprecated.*",
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*WeightAveraging state cannot be restored.*",  # the weights of the checkpoint are the averaged ones
    ):
        warnings.filterwarnings("ignore", message=message)
