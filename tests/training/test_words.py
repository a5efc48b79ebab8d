"""An encoder that learns which words are said of a picture, and a decoder that goes on from it."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from captioning import losses
from captioning.cli import main
from captioning.datasets.records import Record
from captioning.text import Vocabulary
from captioning.training.callbacks import FineTuneEncoder
from captioning.training.data import pad
from captioning.training.words import Naming
from tests.training.conftest import Fit
from tests.training.test_finetuning import Watch
from tests.training.test_module import fast, make, trainer

WORDS = Vocabulary([*Vocabulary.MARKS, *"a dog cat runs".split()])
RECORDS = [
    Record(Path("one.jpg"), ("a dog", "a dog runs", "the dog", "a a a"), "train"),
    Record(Path("two.jpg"), ("a cat",), "train"),
]


def test_the_loss_asks_for_the_share_of_captions_that_say_a_word() -> None:
    words, lengths = pad([[WORDS.encode(caption.split()) for caption in record.captions] for record in RECORDS])
    logits = torch.randn(2, len(WORDS), generator=torch.Generator().manual_seed(0))
    shares = torch.tensor([[0.75, 0.75, 0.0, 0.25], [1.0, 0.0, 1.0, 0.0]])  # "the" is unknown, and marks do not count
    expected = F.binary_cross_entropy_with_logits(logits[:, 4:], shares, reduction="sum") / 2
    torch.testing.assert_close(losses.naming(logits, words, lengths), expected)


def test_it_begins_with_what_is_said_of_most_pictures() -> None:
    naming = Naming(8, len(WORDS)).eval()
    naming.begin(RECORDS, WORDS)
    chances = naming(torch.zeros(1, 4, 8)).sigmoid()[0, 4:]
    torch.testing.assert_close(chances, torch.tensor([0.875, 0.375, 0.5, 0.125]))


def test_the_encoder_learns_the_words_and_the_decoder_waits(drawn: Path, tmp_path: Path) -> None:
    module, data = make(drawn, train_encoder=False, objective="words", optimizer=fast, features=tmp_path)
    before = {name: value.clone() for name, value in module.decoder.state_dict().items()}
    watch = Watch()
    callbacks = [FineTuneEncoder(epoch=0, blocks=2), watch]
    training = trainer(max_epochs=12, num_sanity_val_steps=0, limit_val_batches=0, callbacks=callbacks)
    training.validate(module, data, verbose=False)
    training.fit(module, data)
    assert watch.moved(0) == {"network.places.0.weight", "network.places.3.weight"}
    assert all(torch.equal(value, before[name]) for name, value in module.decoder.state_dict().items())
    (after,) = trainer(callbacks=callbacks).validate(module, data, verbose=False)
    assert set(after) == {"val/loss"}, "nothing is generated"

    usual = Naming(module.encoder.width, len(module.vocabulary))
    usual.begin([record for record in data.records if record.split == "train"], module.vocabulary)
    known, foreseen = 0.0, 0.0
    for batch in data.train_dataloader():
        assert batch.blocks == 2
        with torch.no_grad():
            learnt = module.naming(module.encoder.finish(batch.annotations.float(), batch.blocks))
        known += float(losses.naming(usual.words.bias.detach().expand_as(learnt), batch.words, batch.lengths))
        foreseen += float(losses.naming(learnt, batch.words, batch.lengths))
    assert foreseen < 0.9 * known, "more than what is said of all pictures"


def test_a_decoder_goes_on_from_its_encoder(
    fit: Fit, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep = {"class_path": "pytorch_lightning.callbacks.ModelCheckpoint", "init_args": {"filename": "words"}}
    words = ("--model.objective", "words", "--trainer.callbacks", json.dumps([keep]), "--trainer.max_epochs", "1")
    first = fit(*words, version="words") / "checkpoints" / "words.ckpt"
    assert "says nothing yet" in capsys.readouterr().out
    still = ("--model.train_encoder", "false", "--model.hidden_size", "24", "--trainer.max_epochs", "1")
    run = fit("--model.begin_with", str(first), *still, version="goes-on")
    before, after = (
        torch.load(path, weights_only=True)["state_dict"] for path in (first, run / "checkpoints" / "last.ckpt")
    )
    assert "naming.words.weight" in before
    assert "naming.words.weight" not in after
    encoder = [name for name in before if name.startswith("encoder.")]
    assert encoder
    assert all(torch.equal(before[name], after[name]) for name in encoder)
    assert after["decoder.state_gates.weight"].shape == (4 * 24, 24), "the decoder is its own"
    caches = set((tmp_path / "features").glob("*/annotations.npy"))
    main(["validate", "--config", str(config), "--ckpt_path", str(run / "checkpoints" / "last.ckpt")])
    assert set((tmp_path / "features").glob("*/annotations.npy")) == caches, "of its own encoder, and no other"
    assert len(caches) == 1
