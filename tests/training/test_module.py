"""The module and its data in a plain Trainer, without the command."""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from captioning import Captioner, attention, losses, metrics
from captioning.errors import CaptioningError
from captioning.search import Search
from captioning.text import tokenise
from captioning.training.callbacks import StepSeed
from captioning.training.data import Batch, CaptioningData
from captioning.training.module import CaptioningModule


def make(drawn: Path, **settings) -> tuple[CaptioningModule, CaptioningData]:
    torch.manual_seed(0)
    cache = settings.pop("features", drawn.parent / "features")
    data = CaptioningData(drawn, batch_size=settings.pop("batch_size", 8), features=cache)
    sizes = {"embedding_size": 16, "hidden_size": 32, "attention_size": 16, "search": Search(12)}
    return CaptioningModule(data.vocabulary, **{**sizes, "train_encoder": True, **settings}), data


def trainer(**settings) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(accelerator="cpu", enable_checkpointing=False, use_distributed_sampler=False, **quiet, **settings)


def fast(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


@pytest.mark.parametrize("train_encoder", [True, False])
def test_the_encoder_trains_only_if_told_to(drawn: Path, train_encoder: bool) -> None:
    """Weights and BatchNorm statistics alike: a frozen one must not drift, a free one must reach the optimiser."""
    module, data = make(drawn, train_encoder=train_encoder)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trainer(max_steps=2, limit_val_batches=0).fit(module, data)
    moved = {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}
    for name, _ in module.decoder.named_parameters():
        assert f"decoder.{name}" in moved
    encoder = {name for name in before if name.startswith("encoder.")}
    assert (moved & encoder) == (encoder if train_encoder else set())


def test_with_a_frozen_encoder_each_picture_is_encoded_once_ever(drawn: Path, tmp_path: Path) -> None:
    module, data = make(drawn, train_encoder=False, features=tmp_path)
    sizes: list[int] = []
    module.encoder.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    trainer(max_epochs=3).fit(module, data)
    trainer().validate(module, data, verbose=False)
    assert sum(sizes) == len(data.records)


def test_the_cache_changes_nothing_but_the_time(drawn: Path, tmp_path: Path) -> None:
    results = []
    for cache in (None, tmp_path):
        module, data = make(drawn, train_encoder=False, features=cache, optimizer=fast, doubly_stochastic=0.0)
        trainer(max_epochs=2, limit_val_batches=0).fit(module, data)
        results.append(trainer().validate(module, data, verbose=False)[0]["val/loss"])
    assert results[0] == pytest.approx(results[1], rel=0.01)  # annotations are rounded to half precision


def test_each_picture_is_encoded_once_for_all_its_captions(drawn: Path) -> None:
    module, data = make(drawn)
    sizes = []
    module.encoder.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    trainer(max_epochs=1, limit_val_batches=0).fit(module, data)
    assert sum(sizes) == sum(record.split == "train" for record in data.records)


def test_scores_do_not_depend_on_the_batch_size(drawn: Path) -> None:
    results = []
    for batch_size in (1, 5):
        module, data = make(drawn, batch_size=batch_size)
        (scores,) = trainer().validate(module, data, verbose=False)
        results.append(scores)
    names = "loss bleu1 bleu2 bleu3 bleu4 rouge_l cider distinct1 distinct2 vocabulary length verbatim truth pointing"
    assert results[0].keys() == {f"val/{name}" for name in names.split()}
    assert results[0] == pytest.approx(results[1], rel=1e-4)


def test_scores_are_of_captions_really_generated(drawn: Path) -> None:
    """As a user would get them, one picture at a time; not under teacher forcing, where the truth is looked up."""
    module, data = make(drawn, optimizer=fast, doubly_stochastic=0.0)
    trainer(max_epochs=10, limit_val_batches=0).fit(module, data)
    (scores,) = trainer().validate(module, data, verbose=False)
    captioner = Captioner(module.encoder, module.decoder, module.vocabulary, maximum_length=12)
    records = [record for record in data.records if record.split == "val"]
    captions = [captioner(record.image).words for record in records]
    references = [[tokenise(caption) for caption in record.captions] for record in records]
    assert scores["val/bleu4"] == pytest.approx(metrics.bleu(captions, references)[3], rel=1e-6)
    assert scores["val/bleu4"] > 0


def test_learns(drawn: Path) -> None:
    module, data = make(drawn, optimizer=fast, doubly_stochastic=0.0)
    (before,) = trainer().validate(module, data, verbose=False)
    trainer(max_epochs=6, limit_val_batches=0).fit(module, data)
    (after,) = trainer().validate(module, data, verbose=False)
    assert after["val/loss"] < 0.7 * before["val/loss"]


LOGGED = {"likelihood", "reward", "baseline", "entropy", "expected", "score_gradient", "doubly_stochastic", "loss"}


def train_hard(drawn: Path, seed: int = 0, **settings) -> tuple[CaptioningModule, dict[str, float]]:
    module, data = make(drawn, attention="hard", score="scaled_dot", dropout=0.0, **settings)
    training = trainer(max_steps=4, limit_val_batches=0, log_every_n_steps=2)
    torch.manual_seed(seed)
    training.fit(module, data)
    return module, {name.removeprefix("train/"): float(value) for name, value in training.logged_metrics.items()}


@pytest.mark.parametrize("estimator", losses.ESTIMATORS)
def test_every_estimator_trains_and_logs(drawn: Path, estimator: str) -> None:
    before, _ = make(drawn, attention="hard", score="scaled_dot")
    module, logged = train_hard(drawn, estimator=estimator, entropy_weight=0.01)
    assert logged.keys() == LOGGED
    assert 0 < logged["entropy"] < math.log(64)
    assert logged["reward"] == pytest.approx(-logged["likelihood"])
    assert (logged["score_gradient"] > 0) == (estimator != "gumbel")  # whose gradient goes through the places
    weights = before.state_dict()
    moved = {name for name, value in module.state_dict().items() if not torch.equal(value, weights.get(name, value))}
    assert {f"decoder.{name}" for name, _ in module.decoder.named_parameters()} <= moved


@pytest.mark.parametrize(("expected", "share"), [(0.0, 0.0), (1.0, 1.0)])
def test_the_share_of_expected_pictures_is_logged(drawn: Path, expected: float, share: float) -> None:
    _, logged = train_hard(drawn, expected=expected)
    assert logged["expected"] == share
    assert (logged["score_gradient"] == 0) == (share == 1)


def test_the_same_seed_gives_the_same_run(drawn: Path) -> None:
    (first, _), (again, _), (other, _) = (train_hard(drawn, seed) for seed in (1, 1, 2))
    states = [module.state_dict() for module in (first, again, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(torch.equal(states[0][name], states[2][name]) for name in states[0]), "places are drawn by the seed"


def test_a_soft_start_samples_no_places(drawn: Path) -> None:
    """All of a training that starts softly is that of a soft model, to the last bit; half of it is not."""
    soft, data = make(drawn, score="scaled_dot", dropout=0.0, doubly_stochastic=0.0)
    trainer(max_steps=4, limit_val_batches=0).fit(soft, data)
    whole, _ = train_hard(drawn, soft_start=1.0, doubly_stochastic=0.0)
    half, _ = train_hard(drawn, soft_start=0.5, expected=0.0)
    for name, weight in soft.state_dict().items():
        assert torch.equal(whole.state_dict()[name], weight)
    assert not torch.equal(half.decoder.output.weight, soft.decoder.output.weight)
    assert whole.hard.average == 0
    assert half.hard.average < 0


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("times", [1, 2])
def test_where_all_is_expected_the_hard_loss_is_the_soft_one(drawn: Path, samples: int, times: int) -> None:
    """Smoothing, the doubly stochastic term and the mean over captions included, however many samples and pictures."""
    settings = {"attention": "hard", "train_encoder": False, "dropout": 0.0, "label_smoothing": 0.1}
    module, data = make(drawn, samples=samples, expected=1.0, doubly_stochastic=0.7, **settings)
    module.trainer = trainer()
    batch = next(iter_batches(module, data))
    one, several = (batch_of(batch, count) for count in (1, times))
    soft, _ = module._loss(one, module._annotations(one), attention.expect)
    hard, logged = module._hard_loss(module.hard, several, module._annotations(several))
    torch.testing.assert_close(hard, soft)
    assert logged["expected"] == 1


def batch_of(batch: Batch, times: int) -> Batch:
    """The same pictures several times over."""
    parts = {
        name: getattr(batch, name).repeat(times, *(1 for _ in getattr(batch, name).shape[1:]))
        for name in ("pixels", "words", "lengths")
    }
    return dataclasses.replace(batch, **parts, records=list(batch.records) * times)


def test_captions_are_generated_by_the_look_that_is_chosen(drawn: Path) -> None:
    maps = {}
    for look in ("argmax", "expect"):
        module, data = make(drawn, attention="hard", look=look)
        batch = next(iter_batches(module, data))
        maps[look] = torch.cat([found.weights for found in module.eval()._caption(module._annotations(batch))])
    assert set(maps["argmax"].unique().tolist()) == {0.0, 1.0}
    assert maps["expect"].max() < 1


def test_a_soft_start_is_a_share_of_the_training(drawn: Path) -> None:
    with pytest.raises(CaptioningError, match="soft_start 50"):
        make(drawn, attention="hard", soft_start=50)
    module, data = make(drawn, attention="hard", soft_start=0.5)
    with pytest.raises(CaptioningError, match=r"set trainer\.max_epochs"):
        trainer(max_epochs=-1, max_time={"minutes": 1}).fit(module, data)


def test_accumulated_batches_draw_differently(drawn: Path) -> None:
    """Each of them is seeded by its own number."""
    seeds = []

    class Watch(pl.Callback):
        def on_train_batch_start(self, *_: object) -> None:
            seeds.append(torch.initial_seed())

    module, data = make(drawn)
    trainer(max_epochs=1, limit_val_batches=0, accumulate_grad_batches=3, callbacks=[StepSeed(), Watch()]).fit(
        module, data
    )
    assert len(set(seeds)) == len(seeds) == 6


def test_a_run_that_logs_nothing(drawn: Path) -> None:
    module, data = make(drawn, attention="hard")
    trainer(max_steps=1, limit_val_batches=0, log_every_n_steps=0).fit(module, data)


def test_how_it_looks_is_chosen_by_one_word(drawn: Path) -> None:
    results = {}
    for look in (None, "argmax", "expect", "sample"):
        module, data = make(drawn, attention="hard", look=look)
        torch.manual_seed(5)
        with torch.no_grad():
            module.decoder.attention.score.score.weight.mul_(30)  # else all places are alike
        (results[look],) = trainer().validate(module, data, verbose=False)
    assert results[None] == results["argmax"]
    assert len({scores["val/loss"] for scores in results.values()}) == 3
    with pytest.raises(CaptioningError, match="attention is soft"):
        make(drawn, look="argmax")


def test_the_doubly_stochastic_term_pulls_looks_apart(drawn: Path) -> None:
    def spread(weight: float) -> float:
        module, data = make(drawn, doubly_stochastic=weight, score="additive")
        trainer(max_epochs=4, limit_val_batches=0).fit(module, data)
        batch = next(iter_batches(module, data))
        reading = module.decoder(module.encoder(batch.pixels), batch.words, batch.lengths)
        looked = reading.weights.sum(2)
        return (1 - looked).square().sum(-1).mean().item()

    assert spread(10.0) < spread(0.0)


def iter_batches(module: CaptioningModule, data: CaptioningData):
    from captioning.training.data import CaptionedPictures

    records = [record for record in data.records if record.split == "val"]
    pictures = CaptionedPictures(records, module.vocabulary, module.encoder.transform)
    yield pictures.__getitems__(range(len(records)))


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_the_model_is_told_more_and_more_of_its_own_words(
    drawn: Path, monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    """None at first, at the end almost all; the start mark stays, and what is asked for is the truth."""
    module, data = make(drawn, attention=attention, scheduled_sampling=1.0, expected=0.0)
    read, shares = module.decoder.forward, []

    def watch(annotations, words, lengths, choose=None, told=None):
        if told is not None:
            is_word = torch.arange(words.shape[-1] - 1) < lengths[..., None]
            shares.append((told[..., 1:] != words[..., 1:])[is_word].float().mean().item())
            assert torch.equal(told[..., 0], words[..., 0])
        return read(annotations, words, lengths, choose, told)

    monkeypatch.setattr(module.decoder, "forward", watch)
    trainer(max_epochs=2, limit_val_batches=0).fit(module, data)
    assert shares[0] == 0
    assert shares[-1] > 0.7, "a model that knows nothing yet draws few true words"
    assert sum(shares[: len(shares) // 2]) < sum(shares[len(shares) // 2 :])


def test_no_more_than_all_words_can_be_its_own(drawn: Path) -> None:
    with pytest.raises(CaptioningError, match=r"scheduled_sampling 1\.5"):
        make(drawn, scheduled_sampling=1.5)
