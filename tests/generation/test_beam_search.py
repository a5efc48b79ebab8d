import itertools
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from captioning.generation import GenerationConfig, generate, greedy_search
from captioning.models.attention import AttentionOutput
from captioning.models.decoder import DecoderState, Memory
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError
from tests.generation.helpers import (
    make_decoder,
    run_beam_search,
    teacher_force,
    teacher_forced_log_probs,
    token_ids_of,
)


def test_greedy_search_selects_the_most_probable_token() -> None:
    decoder = make_decoder()
    features = torch.randn(3, 6, 8)
    for index, hypothesis in enumerate(greedy_search(decoder, features, max_length=10)):
        memory, state = decoder.init_state(features[index : index + 1])
        token_id = Vocabulary.BOS_ID
        expected = []
        for step in range(10):
            log_probs, state, _ = decoder.step(torch.tensor([[token_id]]), state, memory)
            for forbidden in (Vocabulary.PAD_ID, Vocabulary.BOS_ID, Vocabulary.UNK_ID):
                log_probs[..., forbidden] = -torch.inf
            if step == 0:
                log_probs[..., Vocabulary.EOS_ID] = -torch.inf
            token_id = int(log_probs.argmax())
            if token_id == Vocabulary.EOS_ID:
                break
            expected.append(token_id)
        assert hypothesis.token_ids == expected


def test_greedy_search_of_a_batch_equals_single_images() -> None:
    decoder = make_decoder(eos_bias=2.0)
    features = torch.randn(8, 6, 8)
    batched = greedy_search(decoder, features)
    assert len({len(hypothesis.token_ids) for hypothesis in batched}) > 1, "the test requires different lengths"
    for index, hypothesis in enumerate(batched):
        single = greedy_search(decoder, features[index : index + 1])[0]
        assert single.token_ids == hypothesis.token_ids
        torch.testing.assert_close(single.attention_weights, hypothesis.attention_weights)
        assert single.log_probs == pytest.approx(hypothesis.log_probs, abs=1e-5)


def test_greedy_log_probs_and_attention_equal_teacher_forcing() -> None:
    """Also checks that the attention weights are aligned with their words."""
    decoder = make_decoder(eos_bias=3.0)
    features = torch.randn(12, 6, 8)
    hypotheses = greedy_search(decoder, features)
    assert max(len(hypothesis.token_ids) for hypothesis in hypotheses) > 3
    for index, hypothesis in enumerate(hypotheses):
        if len(hypothesis.token_ids) == 40:  # truncated, without an end token
            continue
        expected, weights = teacher_force(decoder, features[index : index + 1], hypothesis.token_ids)
        assert hypothesis.log_probs == pytest.approx(expected, abs=1e-4)
        torch.testing.assert_close(hypothesis.attention_weights, weights)


def test_a_caption_without_end_token_is_truncated() -> None:
    hypotheses = greedy_search(make_decoder(eos_bias=-100.0), torch.randn(2, 6, 8), max_length=5)
    assert [len(hypothesis.token_ids) for hypothesis in hypotheses] == [5, 5]
    assert [len(hypothesis.log_probs) for hypothesis in hypotheses] == [5, 5]
    assert not any(hypothesis.is_finished for hypothesis in hypotheses)
    assert hypotheses[0].attention_weights.shape == (5, 6)


def test_max_length_counts_the_end_token() -> None:
    """The end token follows the first word: it fits into two tokens, not into one."""
    decoder, features = make_decoder(eos_bias=100.0), torch.randn(2, 6, 8)
    for max_length, is_finished in ((1, False), (2, True)):
        for hypothesis in greedy_search(decoder, features, max_length):
            assert len(hypothesis.token_ids) == 1
            assert len(hypothesis.log_probs) == max_length
            assert hypothesis.is_finished == is_finished


def test_captions_are_not_empty_and_contain_no_special_tokens() -> None:
    for eos_bias in (100.0, 0.0):
        hypotheses = greedy_search(make_decoder(eos_bias=eos_bias), torch.randn(20, 6, 8), max_length=6)
        assert all(hypothesis.token_ids for hypothesis in hypotheses)
        assert not {token_id for hypothesis in hypotheses for token_id in hypothesis.token_ids} & {0, 1, 2, 3}


@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.0])
def test_a_wide_beam_equals_exhaustive_search(length_penalty: float) -> None:
    """100 beams hold all captions of up to two of the eight words, which teacher forcing scores one by one."""
    decoder = make_decoder(eos_bias=1.0)
    features = torch.randn(4, 6, 8)
    captions = [list(words) for length in (1, 2) for words in itertools.product(range(4, 12), repeat=length)]
    results = run_beam_search(decoder, features, 100, 3, length_penalty, num_return_sequences=5)
    for index, hypotheses in enumerate(results):
        image_features = features[index : index + 1]
        # Captions of three words are truncated at max_length and rank after the finished ones.
        scores = {
            tuple(words): sum(teacher_forced_log_probs(decoder, image_features, words))
            / (len(words) + 1) ** length_penalty
            for words in captions
        }
        expected = sorted(scores, key=scores.__getitem__, reverse=True)[:5]
        assert [tuple(hypothesis.token_ids) for hypothesis in hypotheses] == expected


def test_beam_log_probs_and_attention_equal_teacher_forcing() -> None:
    """Also checks that the attention weights follow the parents of a beam."""
    decoder = make_decoder(eos_bias=2.0)
    features = torch.randn(6, 6, 8)
    lengths = set()
    for index, hypotheses in enumerate(run_beam_search(decoder, features, 4, 12, num_return_sequences=4)):
        for hypothesis in hypotheses:
            if len(hypothesis.token_ids) == 12:
                continue
            lengths.add(len(hypothesis.token_ids))
            expected, weights = teacher_force(decoder, features[index : index + 1], hypothesis.token_ids)
            assert hypothesis.log_probs == pytest.approx(expected, abs=1e-4)
            torch.testing.assert_close(hypothesis.attention_weights, weights)
        totals = [sum(hypothesis.log_probs) for hypothesis in hypotheses if len(hypothesis.token_ids) < 12]
        assert totals == sorted(totals, reverse=True)
    assert len(lengths) > 2


def test_beam_search_of_a_batch_equals_single_images() -> None:
    decoder = make_decoder(eos_bias=2.0)
    features = torch.randn(8, 6, 8)
    batched = run_beam_search(decoder, features, 3, length_penalty=0.7, num_return_sequences=3)
    for index, hypotheses in enumerate(batched):
        image_features = features[index : index + 1]
        single = run_beam_search(decoder, image_features, 3, length_penalty=0.7, num_return_sequences=3)
        assert token_ids_of(single) == token_ids_of([hypotheses])


def test_more_beams_find_more_probable_captions() -> None:
    decoder = make_decoder(eos_bias=2.0)
    features = torch.randn(30, 6, 8)
    totals = []
    for num_beams in (1, 3, 10):
        results = run_beam_search(decoder, features, num_beams)
        totals.append(sum(sum(hypotheses[0].log_probs) for hypotheses in results))
    assert totals == sorted(totals)
    assert totals[0] < totals[2]


def test_early_stopping_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = make_decoder(eos_bias=4.0)
    features = torch.randn(10, 6, 8)
    calls = []
    step = decoder.step
    monkeypatch.setattr(decoder, "step", lambda *arguments: calls.append(1) or step(*arguments))
    results = run_beam_search(decoder, features, 3, 40, 0.8, num_return_sequences=2)
    num_steps = len(calls)
    assert num_steps < 40
    module = sys.modules["captioning.generation.beam_search"]
    monkeypatch.setattr(module, "_is_finished", lambda *_: [False] * 10)  # disables early stopping
    expected = run_beam_search(decoder, features, 3, 40, 0.8, num_return_sequences=2)
    assert len(calls) == num_steps + 40
    assert token_ids_of(results) == token_ids_of(expected)


def test_beams_without_end_token_are_truncated() -> None:
    features = torch.randn(2, 6, 8)
    for hypotheses in run_beam_search(make_decoder(eos_bias=-100.0), features, 3, 5, num_return_sequences=3):
        assert [len(hypothesis.token_ids) for hypothesis in hypotheses] == [5, 5, 5]
        assert len({tuple(hypothesis.token_ids) for hypothesis in hypotheses}) == 3


def test_beams_share_the_memory_of_their_image() -> None:
    decoder = make_decoder()
    memories = set()
    step = decoder.step

    def recording_step(token_ids: torch.Tensor, state: DecoderState, memory: Memory, attention_fn: None) -> Any:
        memories.add((memory.features.data_ptr(), memory.keys.data_ptr(), memory.features.shape))
        return step(token_ids, state, memory, attention_fn)

    decoder.step = recording_step
    features = torch.randn(4, 6, 8)
    run_beam_search(decoder, features, 5)
    assert len(memories) == 1
    assert next(iter(memories))[2] == features.shape


def test_generate_rejects_more_captions_than_beams() -> None:
    config = GenerationConfig(num_beams=3)
    with pytest.raises(CaptioningError, match=r"num_return_sequences must be in \[1, 3\], got 4"):
        generate(make_decoder(), torch.randn(1, 6, 8), config, torch.Generator(), num_return_sequences=4)


class ScriptedDecoder(nn.Module):
    """Generates 4, 5, <end> and counts the calls of init_state."""

    def __init__(self) -> None:
        super().__init__()
        self.num_init_calls = 0

    def init_state(self, features: torch.Tensor) -> tuple[Memory, DecoderState]:
        self.num_init_calls += 1
        zeros = torch.zeros(len(features), 1, 1)
        return Memory(features, features, features), DecoderState(zeros, zeros)

    def step(
        self, token_ids: torch.Tensor, state: DecoderState, memory: Memory, attention_fn: None
    ) -> tuple[torch.Tensor, DecoderState, AttentionOutput]:
        eos = Vocabulary.EOS_ID
        successors = {Vocabulary.BOS_ID: 4, 4: 5, 5: eos, eos: eos}
        next_ids = torch.tensor([[successors[int(token_id)] for token_id in row] for row in token_ids])
        weights = torch.full((len(token_ids), 1, 2), 0.5)
        no_location = torch.full((len(token_ids), 1), -1)
        attention = AttentionOutput(memory.features[:, :1], weights, weights.log(), no_location)
        return F.one_hot(next_ids, 6).float().log(), state, attention


def test_init_state_runs_once_and_search_stops_at_the_end_token() -> None:
    decoder = ScriptedDecoder()
    hypotheses = greedy_search(decoder, torch.zeros(2, 2, 3), max_length=1000)
    assert decoder.num_init_calls == 1
    assert [hypothesis.token_ids for hypothesis in hypotheses] == [[4, 5], [4, 5]]


def test_one_beam_equals_greedy_search() -> None:
    decoder = make_decoder(eos_bias=1.0)
    features = torch.randn(20, 6, 8)
    results = generate(decoder, features, GenerationConfig(num_beams=1, length_penalty=0.9), torch.Generator())
    assert token_ids_of(results) == [[hypothesis.token_ids] for hypothesis in greedy_search(decoder, features)]


def test_captions_have_at_least_min_length_words() -> None:
    decoder = make_decoder(eos_bias=6.0)
    features = torch.randn(5, 6, 8)
    assert min(len(hypothesis.token_ids) for (hypothesis,) in run_beam_search(decoder, features, 3)) < 4
    for settings in ({"num_beams": 3}, {"do_sample": True}):
        config = GenerationConfig(20, min_length=4, **settings)
        results = generate(decoder, features, config, torch.Generator().manual_seed(0))
        for index, (hypothesis,) in enumerate(results):
            assert 4 <= len(hypothesis.token_ids) < 20, "the end token is probable as soon as it is allowed"
            expected = teacher_forced_log_probs(decoder, features[index : index + 1], hypothesis.token_ids)
            assert hypothesis.log_probs == pytest.approx(expected, abs=1e-4)
