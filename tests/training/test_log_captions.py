"""Captions logged to TensorBoard during training."""

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
from captioning.training.callbacks import EMAWeights, LogCaptions, SeedEveryBatch
from captioning.utils.errors import CaptioningError
from tests.training.test_module import fast, make


def train(drawn: Path, folder: Path, *callbacks: pl.Callback, loggers: bool | list = True, **settings):
    """Two epochs of six steps with validation, after a sanity check."""
    module, data = make(drawn, optimizer=fast, **settings)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=2,
        num_sanity_val_steps=1,
        logger=[CSVLogger(folder, "csv"), TensorBoardLogger(folder, "board")] if loggers is True else loggers,
        callbacks=[SeedEveryBatch(), *callbacks],
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


@pytest.mark.parametrize("first", [EMAWeights, LogCaptions])
def test_logged_captions_are_of_the_validated_weights(drawn: Path, tmp_path: Path, first: type[pl.Callback]) -> None:
    """The averaged weights are used, in either order of the callbacks."""
    callbacks = sorted(
        (EMAWeights(decay=0.9, update_every_n_steps=2), LogCaptions(3)), key=lambda one: type(one) is not first
    )
    module, data = train(drawn, tmp_path, *callbacks)
    shown = events(tmp_path)
    images = [record.image_path for record in data.records if record.split == "val"][:3]
    tags = [f"captions/{number}-{path.stem}" for number, path in enumerate(images)]
    assert shown.Tags()["images"] == tags
    captioner = Captioner(module.encoder, module.decoder, module.vocabulary, max_length=12)
    # In one batch, as the callback does: matrix products of another size round differently.
    for tag, caption in zip(tags, captioner(images), strict=True):
        overlays, texts = shown.Images(tag), shown.Tensors(f"{tag}/text_summary")
        assert [event.step for event in overlays] == [event.step for event in texts] == [6, 12], (
            "not of the sanity check"
        )
        assert texts[-1].tensor_proto.string_val[0].decode() == caption.text
        with Image.open(io.BytesIO(overlays[-1].encoded_image_string)) as image:
            assert np.array_equal(np.asarray(image), np.asarray(caption.overlay()))


@pytest.mark.parametrize(
    "settings", [{}, {"decoder": {"attention": "hard"}, "attention_mode": "sample"}, {"encoder": {"frozen": True}}]
)
def test_logging_does_not_change_the_training(drawn: Path, tmp_path: Path, settings: dict) -> None:
    plain, _ = train(drawn, tmp_path / "plain", **settings)
    watched, _ = train(drawn, tmp_path / "watched", LogCaptions(2), **settings)
    assert len(events(tmp_path / "watched").Tags()["images"]) == 2
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, watched.state_dict()[name]), name


def test_without_tensorboard_there_is_one_warning(drawn: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="without a TensorBoardLogger") as caught:
        train(drawn, tmp_path, LogCaptions(), loggers=[CSVLogger(tmp_path)])
    assert len([one for one in caught if "LogCaptions" in str(one.message)]) == 1


def test_a_missing_image_is_skipped(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With cached features only this callback opens images; a missing one must not stop the training."""
    monkeypatch.setattr("captioning.preprocessing.preprocessed_image.open_image", lambda *_: raise_missing())
    with pytest.warns(UserWarning, match="LogCaptions skips an image: file not found"):
        train(drawn, tmp_path, LogCaptions(1), encoder={"frozen": True})


def raise_missing() -> None:
    raise CaptioningError("file not found")


def test_num_images_must_be_positive() -> None:
    with pytest.raises(CaptioningError, match="got 0"):
        LogCaptions(0)
