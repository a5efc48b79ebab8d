"""Self-critical training: its gradient, its reward, and that both come together in a run."""

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from captioning.generation.search import Hypothesis, Search
from captioning.preprocessing.text import Vocabulary

from captioning.datasets.record import Record
from captioning.evaluation import metrics
from captioning.models.decoder import Decoder
from captioning.objectives import losses
from captioning.objectives.self_critical import CiderReward, learn, trial, way_to_try
from captioning.training.datamodule import Batch, pad
from captioning.utils.errors import CaptioningError
from tests.training.conftest import Fit
from tests.training.test_command import check_error
from tests.training.test_command import metrics as logged
from tests.training.test_module import make

WORDS = Vocabulary([*Vocabulary.MARKS, *"a dog cat runs sits big".split()])
RECORDS = [
    Record(Path("one.jpg"), ("a dog runs", "a big dog runs"), "train"),
    Record(Path("two.jpg"), ("a cat sits", "a big cat sits"), "train"),
    Record(Path("three.jpg"), ("a dog sits", "the big dog sits"), "train"),
]


def found(caption: str, ended: bool = True) -> Hypothesis:
    ids = WORDS.encode(caption.split())[1:-1]
    return Hypothesis(ids, [0.0] * (len(ids) + ended), torch.zeros(len(ids), 4))


def test_the_reward_is_cider_with_the_end_as_a_word() -> None:
    critic = CiderReward(RECORDS, WORDS)
    references = [[[*said.split(), "<end>"] for said in record.captions] for record in RECORDS]
    cider = metrics.CiderD(references)
    expected = cider([["a", "big", "dog", "<end>"], ["a", "cat", "sits", "<end>"], ["a", "dog", "sits"]])
    given = [found("a big dog"), found("a cat sits"), found("a dog sits", ended=False)]
    assert [critic(record, one) for record, one in zip(RECORDS, given, strict=True)] == expected
    assert critic(RECORDS[2], found("a dog sits")) > expected[2], "to break off must not pay"
    assert critic(RECORDS[1], found("a cat sits")) > critic(RECORDS[0], found("a cat sits"))


def make_decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(len(WORDS), 8, 4, embedding_size=8, hidden_size=12, attention_size=6, dropout=0.0)


def test_its_mean_is_the_gradient_of_the_expected_reward() -> None:
    """Every caption of up to two of three words, with whatever is the same for all of them taken off the reward."""
    torch.manual_seed(0)
    decoder = Decoder(7, 8, 4, embedding_size=4, hidden_size=5, attention_size=3, dropout=0.0).double()
    annotations = torch.randn(1, 4, 8, dtype=torch.float64)
    captions = [[1, *words, 2] for length in (1, 2) for words in itertools.product((4, 5, 6), repeat=length)]
    rewards = torch.rand(len(captions), dtype=torch.float64)
    words, lengths = pad([captions])
    parameters = list(decoder.parameters())

    def attention_log_probs() -> torch.Tensor:
        reading = decoder(annotations, words, lengths)
        per_word = -F.cross_entropy(reading.logits, reading.targets, reduction="none")
        owner = torch.arange(len(captions)).repeat_interleave(lengths[0])
        return torch.zeros(len(captions), dtype=torch.float64).index_add(0, owner, per_word)

    chances = attention_log_probs().exp()
    exact = torch.autograd.grad(-(chances * rewards).sum(), parameters, allow_unused=True)
    mean = [torch.zeros_like(parameter) for parameter in parameters]
    for number, chance in enumerate(chances.detach()):
        one, length = pad([[captions[number]]])
        reading = decoder(annotations, one, length)
        credit = rewards[number].expand(len(reading.targets))
        loss = losses.self_critical(reading.logits, reading.targets, credit, captions=1)
        for total, part in zip(mean, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            total += chance * (0 if part is None else part)
    for expected, total in zip(exact, mean, strict=True):
        torch.testing.assert_close(total, torch.zeros_like(total) if expected is None else expected)


@pytest.mark.parametrize(
    ("baseline", "by"),
    [("others", Search(6, sample=True)), ("greedy", Search(6, sample=True)), ("others", Search(6, beam=6))],
    ids=["others", "greedy", "beam"],
)
@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_captions_come_to_earn_more(baseline: str, attention: str, by: Search) -> None:
    torch.manual_seed(0)
    decoder = Decoder(len(WORDS), 8, 4, 0, 8, 12, 6, attention=attention, score="general", dropout=0.1)
    annotations = torch.randn(3, 4, 8)
    critic = CiderReward(RECORDS, WORDS)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=0.01)
    earned = []
    for _ in range(150):
        tried = trial(critic, decoder, annotations, RECORDS, 6, baseline, by, generator, None)
        assert tried.rewards.shape == tried.expected.shape == tried.lengths.shape == (3, 6)
        loss, parts = learn(decoder, annotations, tried, 1.0, None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        earned.append(float(parts["reward"]))
    assert sum(earned[-10:]) > 2 * sum(earned[:10])


def test_captions_are_read_again_as_they_were_sampled(drawn: Path) -> None:
    """Each from the same places, with nothing dropped out, and as sharply: else what is judged is not what learns."""
    torch.manual_seed(0)
    module, _ = make(drawn, objective="self_critical", place_dropout=0.5, dropout=0.5, word_dropout=0.5, sharpness=2.0)
    records = [Record(Path("one.jpg"), (" ".join(module.vocabulary.words[4:9]),), "train")]
    annotations = torch.randn(1, module.decoder.settings["places"], module.encoder.width)
    batch = Batch(None, annotations, 0, torch.zeros(1, 1, 2), torch.ones(1, 1), records)
    critic, given = CiderReward(records, module.vocabulary), []

    def record_and_judge(record: Record, caption: Hypothesis) -> float:
        given.append(sum(caption.log_probs))
        return CiderReward.__call__(critic, record, caption)

    seen = []
    handle = module.decoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    loss, parts = module._critical_loss(record_and_judge, batch, annotations)
    handle.remove()
    assert seen[0].shape[1] == annotations.shape[1] // 2
    assert module.decoder.training
    assert torch.isclose(parts["likelihood"], -torch.tensor(given).mean(), atol=1e-4)
    assert loss.requires_grad


def test_what_learns_is_the_chance_by_which_captions_were_drawn() -> None:
    """Were <unk>, which is never drawn, left among the words, it would take up what those that earn little lose."""
    decoder, annotations = make_decoder().eval(), torch.randn(1, 4, 8)
    with torch.no_grad():
        decoder.output.bias[Vocabulary.UNKNOWN] = 3.0
        decoder.output.bias[Vocabulary.END] = 2.0
    by = way_to_try(Search(6), "samples", 5, 2.0)
    tried = trial(
        CiderReward(RECORDS, WORDS),
        decoder,
        annotations,
        RECORDS[:1],
        5,
        "others",
        by,
        torch.Generator().manual_seed(3),
        None,
    )
    loss, _ = learn(
        decoder, annotations, tried._replace(rewards=torch.ones(1, 5), expected=torch.zeros(1, 5)), 2.0, None
    )

    never = [Vocabulary.PAD, Vocabulary.START, Vocabulary.UNKNOWN]
    drawn = 0.0
    for ids, length in zip(tried.words[0].tolist(), tried.lengths[0].tolist(), strict=True):
        memory, state = decoder.start(annotations)
        for step, (word, following) in enumerate(itertools.pairwise(ids[: length + 1])):
            chances, state, _ = decoder.step(torch.tensor([[word]]), state, memory)
            chances = chances.detach()[0, 0].index_fill(0, torch.tensor(never), -torch.inf)
            if step == 0:
                chances[Vocabulary.END] = -torch.inf
            drawn += chances.mul(2.0).log_softmax(-1)[following].item() / 5
    assert loss.item() == pytest.approx(-drawn, abs=1e-4)
    loss.backward()
    assert decoder.output.bias.grad[never].abs().max() == 0
    assert decoder.output.bias.grad[Vocabulary.END] != 0


def test_the_true_captions_may_go_on_teaching(drawn: Path) -> None:
    """Their loss, with dropout and all, is added to that of the captions it tries, as heavily as it is told to."""
    module, _ = make(drawn, objective="self_critical", dropout=0.5, doubly_stochastic=0.0)
    words, lengths = pad([[[Vocabulary.START, 4, 5, 6, Vocabulary.END]]])
    annotations = torch.randn(1, module.decoder.settings["places"], module.encoder.width)
    record = Record(Path("one.jpg"), (" ".join(module.vocabulary.words[4:7]),), "train")
    batch = Batch(None, annotations, 0, words, lengths, [record])
    outcomes = {}
    for weight in (0.0, 0.5):
        torch.manual_seed(0)
        module.likelihood_weight = weight
        outcomes[weight] = module._critical_loss(CiderReward([record], module.vocabulary), batch, annotations)
    (alone, parts), (together, more) = outcomes.values()
    assert "true_likelihood" not in parts
    torch.manual_seed(1)
    losses_with_dropout = {round(module._loss(batch, annotations, None)[0].item(), 4) for _ in range(3)}
    assert len(losses_with_dropout) == 3, "what is read for the likelihood has parts left out"
    torch.testing.assert_close(together, alone + 0.5 * more["true_likelihood"])
    torch.testing.assert_close(more["likelihood"], parts["likelihood"])
    assert more["true_likelihood"].requires_grad


def test_a_beam_is_tried_as_the_search_would_find_it() -> None:
    search = Search(9, min_length=2, no_repeat_ngram_size=2, beam=3, length_penalty=0.7)
    assert way_to_try(search, "beam", 5, 1.0) == dataclasses.replace(search, beam=5)
    assert way_to_try(search, "samples", 5, 2.0) == Search(9, sample=True, temperature=0.5)
    decoder, annotations = make_decoder().eval(), torch.randn(3, 4, 8)
    by = way_to_try(search, "beam", 5, 1.0)
    tried = trial(CiderReward(RECORDS, WORDS), decoder, annotations, RECORDS, 5, "others", by, torch.Generator(), None)
    expected = by(decoder, annotations, torch.Generator(), 5)
    for picture, captions in enumerate(expected):
        assert len({tuple(one.words) for one in captions}) == 5
        lengths = tried.lengths[picture].tolist()
        assert lengths == sorted(lengths, reverse=True), "long ones first: there is less to read"
        read = {
            tuple(words[1 : length + 1].tolist()) for words, length in zip(tried.words[picture], lengths, strict=True)
        }
        assert read == {(*one.words, Vocabulary.END)[: len(one.log_probs)] for one in captions}


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_a_run_goes_on_from_a_likelihood_checkpoint(fit: Fit, attention: str) -> None:
    """With its vocabulary and weights; what it earns is logged, and the weights move."""
    first = fit("--model.attention", attention, "--data.min_word_freq", "3", version="first")
    start = first / "checkpoints" / "last.ckpt"
    still = ("--model.optimizer.init_args.lr", "0.0")
    critical = ("--model.attention", attention, "--model.objective", "self_critical", "--model.begin_with", str(start))
    before = torch.load(start, weights_only=True)
    for name, arguments, moves in (("still", still, False), ("moved", (), True)):
        run = fit(*critical, *arguments, "--trainer.max_epochs", "1", "--trainer.log_every_n_steps", "1", version=name)
        after = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
        assert after["captioner"]["vocabulary"] == before["captioner"]["vocabulary"]
        weights = {key: weight for key, weight in before["state_dict"].items() if key.startswith("decoder.")}
        assert all(torch.equal(weight, after["state_dict"][key]) for key, weight in weights.items()) != moves
        rewards = [float(row["train/reward"]) for row in logged(run) if "train/reward" in row]
        assert len(rewards) == 6
        assert min(rewards) > 0


def test_what_cannot_be_begun_with(fit: Fit, config: Path, tmp_path: Path, capsys, drawn: Path) -> None:
    run = fit("--trainer.max_epochs", "1")
    check_error(capsys, ["fit", "--config", str(config), "--model.begin_with", "none.ckpt"], "no such checkpoint")
    check_error(capsys, ["fit", "--config", str(config), "--model.begin_with", __file__], "not a checkpoint")
    other = ["--model.begin_with", str(run / "checkpoints" / "last.ckpt"), "--model.hidden_size", "24"]
    check_error(capsys, ["fit", "--config", str(config), *other], "is of another model than this config's", "size")
    with pytest.raises(CaptioningError, match=r"captions 1: .* at least 2"):
        make(drawn, objective="self_critical", captions=1)
    with pytest.raises(CaptioningError, match="sharpness 0: must be more"):
        make(drawn, objective="self_critical", sharpness=0)
    with pytest.raises(CaptioningError, match=r"likelihood_weight -0.1: must not be negative"):
        make(drawn, objective="self_critical", likelihood_weight=-0.1)
    for setting, message in (({"sharpness": 2.0}, "sharpness 1"), ({"baseline": "greedy"}, "baseline 'others'")):
        with pytest.raises(CaptioningError, match=f"tries 'beam' wants .*{message}"):
            make(drawn, objective="self_critical", tries="beam", **setting)
    with pytest.raises(CaptioningError, match="look 'argmax' or 'expect'"):
        make(drawn, objective="self_critical", attention="hard", look="sample")
