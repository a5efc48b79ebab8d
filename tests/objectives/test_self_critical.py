"""Self-critical training: its reward and its gradient."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from captioning.datasets.batch import pad_captions
from captioning.datasets.record import Record
from captioning.evaluation.metrics import CiderD
from captioning.generation import GenerationConfig, Hypothesis, generate
from captioning.models.attention import attend_argmax
from captioning.models.decoder import Decoder
from captioning.objectives import BeamRollout, Rollout, SampledRollout, SelfCritical
from captioning.objectives.base import StepContext
from captioning.objectives.location_samples import attend_sequence
from captioning.objectives.rewards import CiderDReward
from captioning.objectives.self_critical import ScoredRollouts, collect_rollouts, policy_gradient_step
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError

VOCABULARY = Vocabulary([*Vocabulary.SPECIAL_TOKENS, *"a dog cat runs sits big".split()])
RECORDS = [
    Record(Path("one.jpg"), ("a dog runs", "a big dog runs"), "train"),
    Record(Path("two.jpg"), ("a cat sits", "a big cat sits"), "train"),
    Record(Path("three.jpg"), ("a dog sits", "the big dog sits"), "train"),
]
NEVER_SAMPLED = [Vocabulary.PAD_ID, Vocabulary.BOS_ID, Vocabulary.UNK_ID]


def make_hypothesis(caption: str, is_finished: bool = True) -> Hypothesis:
    ids = VOCABULARY.encode(caption.split())[1:-1]
    return Hypothesis(ids, [0.0] * (len(ids) + is_finished), torch.zeros(len(ids), 4))


def make_model(**settings) -> SimpleNamespace:
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_size": 12, "dropout": 0.0, "attention_score": "general"}
    decoder = Decoder(len(VOCABULARY), 8, 4, **{**sizes, **settings})
    return SimpleNamespace(
        decoder=decoder, vocabulary=VOCABULARY, generation=GenerationConfig(max_length=6), attention_mode=None
    )


def test_the_reward_is_cider_d_with_the_end_token_as_a_word() -> None:
    reward = CiderDReward(RECORDS, VOCABULARY)
    references = [[[*caption.split(), "<end>"] for caption in record.captions] for record in RECORDS]
    expected = CiderD(references)([["a", "big", "dog", "<end>"], ["a", "cat", "sits", "<end>"], ["a", "dog", "sits"]])
    hypotheses = [
        make_hypothesis("a big dog"),
        make_hypothesis("a cat sits"),
        make_hypothesis("a dog sits", is_finished=False),
    ]
    assert [reward(record, caption) for record, caption in zip(RECORDS, hypotheses, strict=True)] == expected
    assert reward(RECORDS[2], make_hypothesis("a dog sits")) > expected[2], "truncated captions receive less"


@pytest.mark.parametrize("attention", ["soft", "hard"])
@pytest.mark.parametrize("architecture", ["show_attend_tell", "luong"])
def test_mean_of_the_loss_gradient_is_the_gradient_of_the_expected_reward(attention: str, architecture: str) -> None:
    """All captions of one or two of three words; for hard attention with all sequences of two locations."""
    torch.manual_seed(0)
    sizes = {"embedding_size": 4, "hidden_size": 5, "attention_size": 3, "dropout": 0.0}
    num_locations, temperature = 2, 0.7
    decoder = Decoder(7, 4, num_locations, attention=attention, architecture=architecture, **sizes).double().eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(std=0.8)
    features = torch.randn(1, num_locations, 4, dtype=torch.double)
    captions = [[1, *words, 2] for length in (1, 2) for words in itertools.product((4, 5, 6), repeat=length)]
    actions: list[tuple[list[int], tuple[int, ...]]] = [
        (caption, locations)
        for caption in captions
        for locations in itertools.product(range(num_locations if attention == "hard" else 1), repeat=len(caption) - 1)
    ]
    rewards = torch.rand(len(actions), dtype=torch.double)

    def log_prob(caption: list[int], locations: tuple[int, ...]) -> Tensor:
        """log p(y, s | a), step by step, of the policy that samples with a temperature."""
        memory, state = decoder.init_state(features)
        total = torch.zeros((), dtype=torch.double)
        for step, (token, following) in enumerate(itertools.pairwise(caption)):
            attention_fn = (
                attend_sequence(torch.tensor([[[locations[step]]]]), decoder) if attention == "hard" else None
            )
            log_probs, state, attended = decoder.step(torch.tensor([[token]]), state, memory, attention_fn)
            forbidden = [*NEVER_SAMPLED, *([Vocabulary.EOS_ID] if step == 0 else [])]
            policy = log_probs[0, 0].index_fill(0, torch.tensor(forbidden), -torch.inf) / temperature
            total = total + policy.log_softmax(-1)[following]
            if attention == "hard":
                total = total + attended.scores[0, 0].log_softmax(-1)[locations[step]]
        return total

    probs = torch.stack([log_prob(*action) for action in actions]).exp()
    parameters = list(decoder.parameters())
    exact = torch.autograd.grad(-(probs * rewards).sum(), parameters, allow_unused=True)

    token_ids, lengths = pad_captions([[caption for caption, _ in actions]])
    num_steps = int(lengths.max())
    locations = torch.tensor([[[*sequence, *[0] * (num_steps - len(sequence))] for _, sequence in actions]])
    # Every action occurs once, so its probability is a factor of its reward. The loss is a mean over the captions.
    weighted = (probs.detach() * rewards * len(actions))[None]
    rollouts = ScoredRollouts(
        token_ids, lengths, weighted, torch.zeros_like(weighted), locations if attention == "hard" else None
    )
    loss, metrics = policy_gradient_step(decoder, features, rollouts, temperature, None)
    estimated = torch.autograd.grad(loss, parameters, allow_unused=True)
    for expected, gradient in zip(exact, estimated, strict=True):
        assert (expected is None) == (gradient is None)
        if expected is not None:
            torch.testing.assert_close(gradient, expected)
    assert ("attention_entropy" in metrics) == (attention == "hard")
    names = [name for name, _ in decoder.named_parameters()]
    assert estimated[names.index("attention.score_fn.query_proj.weight")].abs().max() > 0


@pytest.mark.parametrize(
    ("attention", "rollout", "sample_locations"),
    [
        ("soft", SampledRollout(6), False),
        ("soft", SampledRollout(6, baseline="greedy"), False),
        ("soft", BeamRollout(6), False),
        ("hard", BeamRollout(6), False),
        ("hard", SampledRollout(6), True),
    ],
    ids=["sample", "greedy", "beam", "hard-beam", "hard-sample"],
)
def test_rewards_increase(attention: str, rollout: Rollout, sample_locations: bool) -> None:
    model = make_model(attention=attention)
    features, reward = torch.randn(3, 4, 8), CiderDReward(RECORDS, VOCABULARY)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.decoder.parameters(), lr=0.01)
    rewards = []
    for _ in range(100):
        model.decoder.eval()
        rollouts = collect_rollouts(rollout, reward, model, features, RECORDS, generator, None, sample_locations)
        assert rollouts.rewards.shape == rollouts.baseline.shape == rollouts.lengths.shape == (3, 6)
        loss, metrics = policy_gradient_step(model.decoder, features, rollouts, rollout.temperature, None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rewards.append(float(metrics["reward"]))
    assert sum(rewards[-10:]) > 2 * sum(rewards[:10])


@pytest.mark.parametrize("sample_locations", [False, True])
def test_captions_are_scored_again_as_they_were_sampled(sample_locations: bool) -> None:
    """The second pass uses the same locations and no dropout."""
    model = make_model(attention="hard", dropout=0.5, word_dropout=0.5, location_dropout=0.5)
    model.decoder.train()
    objective = SelfCritical(SampledRollout(5), sample_locations=sample_locations)
    objective.setup(model)
    objective.on_train_start(SimpleNamespace(records=RECORDS))
    log_probs = []

    def record_log_prob(record: Record, hypothesis: Hypothesis) -> float:
        log_probs.append(sum(hypothesis.log_probs))
        return float(len(log_probs))

    objective._reward = record_log_prob
    batch = SimpleNamespace(records=RECORDS)
    loss, metrics = objective(model, torch.randn(3, 4, 8), batch, StepContext(torch.device("cpu")))
    assert metrics["rollout_nll"].item() == pytest.approx(-sum(log_probs) / len(log_probs), abs=1e-4)
    assert model.decoder.training
    loss.backward()
    attention_gradient = model.decoder.attention.score_fn.key_proj.weight.grad
    assert (attention_gradient is not None and bool(attention_gradient.any())) == sample_locations


def test_sampled_hypotheses_contain_the_location_of_each_token() -> None:
    model = make_model(attention="hard")
    config, features = GenerationConfig(6, do_sample=True), torch.randn(2, 4, 8)
    for hypothesis in itertools.chain(
        *generate(model.decoder.eval(), features, config, torch.Generator(), 3, attend_argmax)
    ):
        assert len(hypothesis.locations) == len(hypothesis.log_probs)
        words = len(hypothesis.token_ids)
        assert list(hypothesis.locations[:words]) == hypothesis.attention_weights.argmax(-1).tolist()


def test_tokens_that_are_never_sampled_have_no_gradient() -> None:
    """Otherwise <unk> would receive the probability that captions with a low reward lose."""
    model = make_model(tie_word_embeddings=False)
    with torch.no_grad():
        model.decoder.output.bias[Vocabulary.UNK_ID] = 3.0
        model.decoder.output.bias[Vocabulary.EOS_ID] = 2.0
    model.decoder.eval()
    features, generator = torch.randn(1, 4, 8), torch.Generator().manual_seed(3)
    reward = CiderDReward(RECORDS, VOCABULARY)
    rollouts = collect_rollouts(SampledRollout(5, 0.5), reward, model, features, RECORDS[:1], generator, None)
    rollouts = rollouts._replace(rewards=torch.ones(1, 5), baseline=torch.zeros(1, 5))
    policy_gradient_step(model.decoder, features, rollouts, 0.5, None).loss.backward()
    assert model.decoder.output.bias.grad[NEVER_SAMPLED].abs().max() == 0
    assert model.decoder.output.bias.grad[Vocabulary.EOS_ID] != 0


def test_beam_rollouts_are_the_captions_of_beam_search() -> None:
    model = make_model()
    model.generation = GenerationConfig(9, min_length=2, no_repeat_ngram_size=2, num_beams=3, length_penalty=0.7)
    features, generator = torch.randn(3, 4, 8), torch.Generator()
    model.decoder.eval()
    reward = CiderDReward(RECORDS, VOCABULARY)
    rollouts = collect_rollouts(BeamRollout(5), reward, model, features, RECORDS, generator, None)
    config = BeamRollout(5).generation_config(model.generation)
    assert config.num_beams == 5
    for image, hypotheses in enumerate(generate(model.decoder, features, config, generator, 5)):
        lengths = rollouts.lengths[image].tolist()
        assert lengths == sorted(lengths, reverse=True)
        captions = {
            tuple(ids[1 : length + 1].tolist()) for ids, length in zip(rollouts.token_ids[image], lengths, strict=True)
        }
        assert captions == {(*one.token_ids, Vocabulary.EOS_ID)[: len(one.log_probs)] for one in hypotheses}


def test_invalid_settings() -> None:
    with pytest.raises(CaptioningError, match=r"SampledRollout.num_rollouts must be >= 2, got 1"):
        SampledRollout(1)
    with pytest.raises(CaptioningError, match=r"SampledRollout.temperature must be > 0, got 0"):
        SampledRollout(temperature=0)
    with pytest.raises(CaptioningError, match="sample_locations requires sampled captions: set rollout"):
        SelfCritical(BeamRollout(), sample_locations=True)
    with pytest.raises(CaptioningError, match="sample_locations requires hard attention"):
        SelfCritical(SampledRollout(), sample_locations=True).setup(make_model())
    model = make_model(attention="hard")
    model.attention_mode = "sample"
    with pytest.raises(CaptioningError, match=r"set model.attention_mode to argmax or expectation"):
        SelfCritical(SampledRollout()).setup(model)
