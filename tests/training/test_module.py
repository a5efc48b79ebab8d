"""The LightningModule and the data module in a plain Trainer."""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from captioning import Captioner
from captioning.datasets.batch import Batch
from captioning.evaluation import metrics
from captioning.generation import GenerationConfig
from captioning.models.attention import attend_expectation
from captioning.models.decoder_config import DecoderConfig
from captioning.models.encoder import EncoderConfig
from captioning.objectives import (
    CrossEntropy,
    DoublyStochastic,
    GradientEstimator,
    LearnedBaseline,
    LeaveOneOut,
    Reinforce,
    StraightThroughGumbel,
    TopKMarginalized,
    VariationalBound,
)
from captioning.objectives.base import StepContext
from captioning.preprocessing.tokenizer import tokenize
from captioning.training.callbacks import SeedEveryBatch
from captioning.training.caption_dataset import CaptionDataset
from captioning.training.datamodule import CaptionDataModule
from captioning.training.module import CaptioningModule
from captioning.training.sampler import SampleKey
from captioning.training.validation import predict
from captioning.utils.errors import CaptioningError

ESTIMATORS = (Reinforce, LeaveOneOut, LearnedBaseline, StraightThroughGumbel, TopKMarginalized)


def make(
    drawn: Path, encoder: dict[str, Any] | None = None, decoder: dict[str, Any] | None = None, **settings: Any
) -> tuple[CaptioningModule, CaptionDataModule]:
    """A small model and its data; a hard model gets the paper's objective unless another one is given."""
    torch.manual_seed(0)
    cache_dir = settings.pop("feature_cache_dir", drawn.parent / "features")
    data = CaptionDataModule(drawn, batch_size=settings.pop("batch_size", 8), feature_cache_dir=cache_dir)
    decoder = {"embedding_size": 16, "hidden_size": 32, "attention_size": 16, **(decoder or {})}
    if decoder.get("attention") == "hard":
        settings.setdefault("objective", VariationalBound(Reinforce()))
    module = CaptioningModule(
        data.vocabulary,
        encoder=EncoderConfig(**{"frozen": False, **(encoder or {})}),
        decoder=DecoderConfig(**decoder),
        generation=GenerationConfig(12),
        **settings,
    )
    return module, data


def trainer(**settings: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(accelerator="cpu", enable_checkpointing=False, use_distributed_sampler=False, **quiet, **settings)


def fast(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def first_batch(module: CaptioningModule, data: CaptionDataModule) -> Batch:
    records = [record for record in data.records if record.split == "val"]
    dataset = CaptionDataset(records, module.vocabulary, module.encoder.transform)
    return dataset.__getitems__([SampleKey(index) for index in range(len(records))])


@pytest.mark.parametrize("frozen", [False, True])
def test_the_encoder_is_trained_unless_frozen(drawn: Path, frozen: bool) -> None:
    """This holds for weights and BatchNorm statistics."""
    module, data = make(drawn, encoder={"frozen": frozen})
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trainer(max_steps=2, limit_val_batches=0).fit(module, data)
    moved = {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}
    for name, _ in module.decoder.named_parameters():
        assert f"decoder.{name}" in moved
    encoder = {name for name in before if name.startswith("encoder.")}
    assert (moved & encoder) == (set() if frozen else encoder)


def test_a_frozen_encoder_processes_each_image_once(drawn: Path, tmp_path: Path) -> None:
    module, data = make(drawn, encoder={"frozen": True}, feature_cache_dir=tmp_path)
    sizes: list[int] = []
    module.encoder.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    trainer(max_epochs=3).fit(module, data)
    trainer().validate(module, data, verbose=False)
    assert sum(sizes) == sum(record.split != "test" for record in data.records)


def test_the_feature_cache_does_not_change_the_result(drawn: Path, tmp_path: Path) -> None:
    results = []
    for cache_dir in (None, tmp_path):
        module, data = make(drawn, encoder={"frozen": True}, feature_cache_dir=cache_dir, optimizer=fast)
        trainer(max_epochs=2, limit_val_batches=0).fit(module, data)
        results.append(trainer().validate(module, data, verbose=False)[0]["val/nll"])
    assert results[0] == pytest.approx(results[1], rel=0.01)  # cached features have half precision


def test_an_image_is_encoded_once_for_all_its_captions(drawn: Path) -> None:
    module, data = make(drawn)
    sizes: list[int] = []
    module.encoder.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    trainer(max_epochs=1, limit_val_batches=0).fit(module, data)
    assert sum(sizes) == sum(record.split == "train" for record in data.records)


def test_metrics_do_not_depend_on_the_batch_size(drawn: Path) -> None:
    results = []
    for batch_size in (1, 5):
        module, data = make(drawn, batch_size=batch_size)
        (scores,) = trainer().validate(module, data, verbose=False)
        results.append(scores)
    names = (
        "nll bleu1 bleu2 bleu3 bleu4 rouge_l cider_d distinct1 distinct2 num_distinct_words mean_length train_overlap "
        "caption_accuracy pointing_game"
    )
    assert results[0].keys() == {f"val/{name}" for name in names.split()}
    assert results[0] == pytest.approx(results[1], rel=1e-4)


def test_metrics_are_of_generated_captions(drawn: Path) -> None:
    """Captions are generated one image at a time as by a user, not with teacher forcing."""
    module, data = make(drawn, optimizer=fast)
    trainer(max_epochs=10, limit_val_batches=0).fit(module, data)
    (scores,) = trainer().validate(module, data, verbose=False)
    captioner = Captioner(module.encoder, module.decoder, module.vocabulary, max_length=12)
    records = [record for record in data.records if record.split == "val"]
    captions = [captioner(record.image_path).words for record in records]
    references = [[tokenize(caption) for caption in record.captions] for record in records]
    assert scores["val/bleu4"] == pytest.approx(metrics.bleu(captions, references)[3], rel=1e-6)
    assert scores["val/bleu4"] > 0


def test_training_lowers_the_validation_nll(drawn: Path) -> None:
    module, data = make(drawn, optimizer=fast)
    (before,) = trainer().validate(module, data, verbose=False)
    trainer(max_epochs=6, limit_val_batches=0).fit(module, data)
    (after,) = trainer().validate(module, data, verbose=False)
    assert after["val/nll"] < 0.7 * before["val/nll"]


LOGGED = {
    *("nll", "reward", "baseline", "advantage_variance", "attention_entropy", "expectation_fraction"),
    *("pathwise_grad_norm", "score_function_grad_norm", "entropy_grad_norm", "argmax_changed"),
    *("doubly_stochastic", "loss"),
}


def train_hard(
    drawn: Path, seed: int = 0, estimator: GradientEstimator | None = None, **settings: Any
) -> tuple[CaptioningModule, dict[str, float]]:
    objective = VariationalBound(estimator or Reinforce(), **{"terms": [DoublyStochastic()], **settings})
    decoder = {"attention": "hard", "attention_score": "scaled_dot", "dropout": 0.0}
    module, data = make(drawn, decoder=decoder, objective=objective)
    training = trainer(max_steps=4, limit_val_batches=0, log_every_n_steps=2)
    torch.manual_seed(seed)
    training.fit(module, data)
    return module, {name.removeprefix("train/"): float(value) for name, value in training.logged_metrics.items()}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_trains_and_logs(drawn: Path, estimator: type[GradientEstimator]) -> None:
    before, _ = make(drawn, decoder={"attention": "hard", "attention_score": "scaled_dot"})
    is_learned = estimator is LearnedBaseline
    settings = {"warmup_steps": 0} if is_learned else {}
    module, logged = train_hard(drawn, estimator=estimator(**settings), entropy_weight=0.01)
    assert logged.keys() == LOGGED | ({"baseline_grad_norm"} if is_learned else set())
    assert 0 < logged["attention_entropy"] < math.log(64)
    assert logged["reward"] == pytest.approx(-logged["nll"])
    assert (logged["score_function_grad_norm"] > 0) == (estimator is not StraightThroughGumbel)
    assert (logged["advantage_variance"] > 0) == (estimator is not StraightThroughGumbel)
    assert logged["pathwise_grad_norm"] > 0
    assert 0 <= logged["argmax_changed"] <= 1
    weights = before.state_dict()
    moved = {name for name, value in module.state_dict().items() if not torch.equal(value, weights.get(name, value))}
    assert {f"decoder.{name}" for name, _ in module.decoder.named_parameters()} <= moved


@pytest.mark.parametrize("prob", [0.0, 1.0])
def test_the_expectation_fraction_is_logged(drawn: Path, prob: float) -> None:
    _, logged = train_hard(drawn, expectation_prob=prob)
    assert logged["expectation_fraction"] == prob
    assert (logged["score_function_grad_norm"] == 0) == (prob == 1)


def test_the_same_seed_gives_the_same_run(drawn: Path) -> None:
    (first, _), (again, _), (other, _) = (train_hard(drawn, seed) for seed in (1, 1, 2))
    states = [module.state_dict() for module in (first, again, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(torch.equal(states[0][name], states[2][name]) for name in states[0]), "the seed selects locations"


def test_soft_warmup_samples_no_locations(drawn: Path) -> None:
    """A run that is all warm-up equals that of a soft model bitwise; a run that is half warm-up does not."""
    soft, data = make(drawn, decoder={"attention_score": "scaled_dot", "dropout": 0.0})
    trainer(max_steps=4, limit_val_batches=0).fit(soft, data)
    whole, _ = train_hard(drawn, soft_warmup=1.0, terms=[])
    half, _ = train_hard(drawn, soft_warmup=0.5, expectation_prob=0.0)
    for name, weight in soft.state_dict().items():
        assert torch.equal(whole.state_dict()[name], weight)
    assert not torch.equal(half.decoder.output.weight, soft.decoder.output.weight)
    assert whole.objective.estimator.average_return.num_updates == 0
    assert half.objective.estimator.average_return.num_updates == 2


@pytest.mark.parametrize("num_samples", [1, 3])
@pytest.mark.parametrize("times", [1, 2])
def test_the_bound_with_expectations_equals_cross_entropy(drawn: Path, num_samples: int, times: int) -> None:
    """Label smoothing, the doubly stochastic term and the mean over captions do not depend on samples and images."""
    terms, smoothing = [DoublyStochastic(0.7)], {"label_smoothing": 0.1}
    bound = VariationalBound(Reinforce(num_samples=num_samples), expectation_prob=1.0, terms=terms, **smoothing)
    module, data = make(drawn, encoder={"frozen": True}, decoder={"attention": "hard", "dropout": 0.0}, objective=bound)
    batch = first_batch(module, data)
    single, repeated = (repeat(batch, count) for count in (1, times))
    step = StepContext(module.device, "expectation")
    soft = CrossEntropy(terms=terms, **smoothing)(module, module._encode(single), single, step)
    hard = module.objective(module, module._encode(repeated), repeated, step)
    torch.testing.assert_close(hard.loss, soft.loss)
    assert hard.metrics["expectation_fraction"] == 1


def repeat(batch: Batch, times: int) -> Batch:
    """The same images several times."""
    parts = {
        name: getattr(batch, name).repeat(times, *(1 for _ in getattr(batch, name).shape[1:]))
        for name in ("pixels", "token_ids", "lengths")
    }
    return dataclasses.replace(batch, **parts, records=list(batch.records) * times)


def test_captions_are_generated_with_the_attention_mode(drawn: Path) -> None:
    maps = {}
    for mode in ("argmax", "expectation"):
        module, data = make(drawn, decoder={"attention": "hard"}, attention_mode=mode)
        batch = first_batch(module, data)
        predictions = predict(module.eval(), batch, module._encode(batch))
        maps[mode] = torch.cat([torch.from_numpy(prediction.attention_maps).flatten() for prediction in predictions])
    assert set(maps["argmax"].unique().tolist()) == {0.0, 1.0}
    assert maps["expectation"].max() < 1


def test_soft_warmup_is_a_fraction_of_the_training(drawn: Path) -> None:
    with pytest.raises(CaptioningError, match="soft_warmup"):
        VariationalBound(Reinforce(), soft_warmup=50)
    module, data = make(drawn, decoder={"attention": "hard"}, objective=VariationalBound(Reinforce(), soft_warmup=0.5))
    with pytest.raises(CaptioningError, match=r"set trainer\.max_epochs"):
        trainer(max_epochs=-1, max_time={"minutes": 1}).fit(module, data)


def test_accumulated_batches_have_different_seeds(drawn: Path) -> None:
    seeds = []

    class Watch(pl.Callback):
        def on_train_batch_start(self, *_: object) -> None:
            seeds.append(torch.initial_seed())

    module, data = make(drawn)
    callbacks = [SeedEveryBatch(), Watch()]
    trainer(max_epochs=1, limit_val_batches=0, accumulate_grad_batches=3, callbacks=callbacks).fit(module, data)
    assert len(set(seeds)) == len(seeds) == 6


def test_a_run_without_logging(drawn: Path) -> None:
    module, data = make(drawn, decoder={"attention": "hard"})
    trainer(max_steps=1, limit_val_batches=0, log_every_n_steps=0).fit(module, data)


def test_attention_modes_give_different_results(drawn: Path) -> None:
    results = {}
    for mode in (None, "argmax", "expectation", "sample"):
        module, data = make(drawn, decoder={"attention": "hard"}, attention_mode=mode)
        torch.manual_seed(5)
        with torch.no_grad():
            module.decoder.attention.score_fn.energy_proj.weight.mul_(30)  # otherwise attention is nearly uniform
        (results[mode],) = trainer().validate(module, data, verbose=False)
    assert results[None] == results["argmax"]
    assert len({scores["val/nll"] for scores in results.values()}) == 3
    with pytest.raises(CaptioningError, match="soft attention"):
        make(drawn, attention_mode="argmax")


def test_the_doubly_stochastic_term_spreads_attention(drawn: Path) -> None:
    def penalty(weight: float) -> float:
        module, data = make(drawn, objective=CrossEntropy(terms=[DoublyStochastic(weight)]))
        trainer(max_epochs=4, limit_val_batches=0).fit(module, data)
        batch = first_batch(module, data)
        output = module.decoder(module.encoder(batch.pixels), batch.token_ids, batch.lengths)
        return (1 - output.attention_weights.sum(2)).square().sum(-1).mean().item()

    assert penalty(10.0) < penalty(0.0)


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_scheduled_sampling_increases_during_training(
    drawn: Path, monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    """No model tokens at first, almost only model tokens at the end; the start token and the targets do not change."""
    objective = (
        CrossEntropy(scheduled_sampling=1.0)
        if attention == "soft"
        else VariationalBound(Reinforce(), scheduled_sampling=1.0, expectation_prob=0.0)
    )
    module, data = make(drawn, decoder={"attention": attention}, objective=objective)
    forward, fractions = module.decoder.forward, []

    def watch(features, token_ids, lengths, attention_fn=attend_expectation, input_ids=None, num_samples=1):
        if input_ids is not None:
            token_mask = torch.arange(token_ids.shape[-1] - 1) < lengths[..., None]
            fractions.append((input_ids[..., 1:] != token_ids[..., 1:])[token_mask].float().mean().item())
            assert torch.equal(input_ids[..., 0], token_ids[..., 0])
        return forward(features, token_ids, lengths, attention_fn, input_ids, num_samples)

    monkeypatch.setattr(module.decoder, "forward", watch)
    trainer(max_epochs=2, limit_val_batches=0).fit(module, data)
    assert fractions[0] == 0
    assert fractions[-1] > 0.7, "an untrained model rarely samples the reference token"
    assert sum(fractions[: len(fractions) // 2]) < sum(fractions[len(fractions) // 2 :])


def test_scheduled_sampling_is_a_fraction() -> None:
    with pytest.raises(CaptioningError, match="scheduled_sampling"):
        CrossEntropy(scheduled_sampling=1.5)
