"""Captions shown in TensorBoard while a model trains."""

import io
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from PIL import Image
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from captioning import Captioner
from captioning.errors import CaptioningError
from captioning.training.callbacks import AverageWeights, LogCaptions, StepSeed
from tests.training.test_module import fast, make


def train(drawn: Path, folder: Path, *callbacks: pl.Callback, loggers: bool | list = True, **settings):
    """Two epochs of six steps, each with a validation, and a sanity check before them."""
    module, data = make(drawn, optimizer=fast, **settings)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=2,
        num_sanity_val_steps=1,
        logger=[CSVLogger(folder, "csv"), TensorBoardLogger(folder, "board")] if loggers is True else loggers,
        callbacks=[StepSeed(), *callbacks],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        log_every_n_steps=2,
    )
    trainer.fit(module, data)
    return module, data


def events(folder: Path) -> EventAccumulator:
    (board,) = (folder / "board").iterdir()
    return EventAccumulator(str(board), size_guidance={"images": 0, "tensors": 0}).Reload()


@pytest.mark.parametrize("first", [AverageWeights, LogCaptions])
def test_what_is_shown_is_what_was_validated(drawn: Path, tmp_path: Path, first: type[pl.Callback]) -> None:
    """Of the averaged weights, whichever of the callbacks comes first; training ends with them."""
    callbacks = sorted((AverageWeights(decay=0.9, every=2), LogCaptions(3)), key=lambda one: type(one) is not first)
    module, data = train(drawn, tmp_path, *callbacks)
    shown = events(tmp_path)
    pictures = [record.image for record in data.records if record.split == "val"][:3]
    tags = [f"captions/{number}-{path.stem}" for number, path in enumerate(pictures)]
    assert shown.Tags()["images"] == tags
    captioner = Captioner(module.encoder, module.decoder, module.vocabulary, maximum_length=12)
    for tag, path in zip(tags, pictures, strict=True):
        images, texts = shown.Images(tag), shown.Tensors(f"{tag}/text_summary")
        assert [event.step for event in images] == [event.step for event in texts] == [6, 12], "not of the sanity check"
        caption = captioner(path)
        assert texts[-1].tensor_proto.string_val[0].decode() == caption.text
        with Image.open(io.BytesIO(images[-1].encoded_image_string)) as image:
            assert np.array_equal(np.asarray(image), np.asarray(caption.overlay()))


@pytest.mark.parametrize("settings", [{}, {"attention": "hard", "look": "sample"}, {"train_encoder": False}])
def test_training_is_the_same_with_and_without(drawn: Path, tmp_path: Path, settings: dict) -> None:
    plain, _ = train(drawn, tmp_path / "plain", **settings)
    watched, _ = train(drawn, tmp_path / "watched", LogCaptions(2), **settings)
    assert len(events(tmp_path / "watched").Tags()["images"]) == 2
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, watched.state_dict()[name]), name


def test_without_tensorboard_one_warning_and_nothing_else(drawn: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no TensorBoardLogger") as caught:
        train(drawn, tmp_path, LogCaptions(), loggers=[CSVLogger(tmp_path)])
    assert len([one for one in caught if "LogCaptions" in str(one.message)]) == 1


def test_a_picture_that_has_gone_is_passed_over(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With cached features nothing else opens pictures: training must not end for a sample."""
    monkeypatch.setattr("captioning.captioner.open_image", lambda *_: raise_gone())
    with pytest.warns(UserWarning, match="LogCaptions passes over it is gone"):
        train(drawn, tmp_path, LogCaptions(1), train_encoder=False)


def raise_gone() -> None:
    raise CaptioningError("it is gone")


def test_some_pictures_are_wanted() -> None:
    with pytest.raises(CaptioningError, match="not 0"):
        LogCaptions(0)
