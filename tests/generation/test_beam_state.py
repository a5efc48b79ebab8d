"""Each operation of BeamState alone, on hand-made log-probabilities."""

import torch

from captioning.generation import GenerationConfig
from captioning.generation.beam_state import BeamState
from captioning.models.decoder import DecoderState, Memory
from captioning.preprocessing.vocabulary import Vocabulary

EOS = Vocabulary.EOS_ID
VOCABULARY_SIZE = 7


def make_state(num_images: int, config: GenerationConfig) -> BeamState:
    features = torch.arange(num_images * 3.0).view(num_images, 3, 1)
    hidden = torch.arange(float(num_images)).view(num_images, 1, 1)
    return BeamState.start(Memory(features, features + 100, hidden + 20), DecoderState(hidden, hidden + 10), config)


def advance(state: BeamState, config: GenerationConfig, *beams: dict[int, float]) -> None:
    """Advance all images by the same log-probabilities, one dict (token id -> log-probability) per beam.

    The decoder state and attention weights of a beam hold the number of the beam.
    """
    num_images = len(state.token_ids)
    log_probs = torch.full((len(beams), VOCABULARY_SIZE), -torch.inf)
    for beam, values in enumerate(beams):
        log_probs[beam, list(values)] = torch.tensor(list(values.values()))
    beam_numbers = torch.arange(float(len(beams)))[None, :, None].expand(num_images, -1, 1)
    weights = beam_numbers + 10 * len(state.history)
    log_probs = log_probs.expand(num_images, -1, -1)
    state.advance(config, log_probs, DecoderState(beam_numbers, beam_numbers), weights)


def test_start_has_one_beam_per_image() -> None:
    state = make_state(2, GenerationConfig(num_beams=6, num_beam_groups=3))
    assert state.token_ids.tolist() == [[Vocabulary.BOS_ID]] * 2
    assert state.generated.shape == (2, 1, 0)
    assert state.scores.tolist() == [[0.0]] * 2
    assert state.finished_scores.shape == (2, 3, 2)
    assert state.finished_scores.isneginf().all()
    assert state.rows == {0: 0, 1: 1}


def test_advance_extends_the_best_beams() -> None:
    config = GenerationConfig(num_beams=2)
    state = make_state(1, config)
    advance(state, config, {4: -0.5, 5: -1.0, 6: -3.0})
    assert state.token_ids.tolist() == [[4, 5]]
    assert state.scores.tolist() == [[-0.5, -1.0]]
    advance(state, config, {4: -4.0, 5: -5.0}, {4: -0.5, 6: -0.25})
    assert state.token_ids.tolist() == [[6, 4]]
    assert state.scores.tolist() == [[-1.25, -1.5]]
    assert state.generated.tolist() == [[[5, 6], [5, 4]]], "both beams continue the second beam"
    assert state.decoder_state.hidden.flatten().tolist() == [1.0, 1.0]
    assert len(state.history) == 2


def test_advance_collects_finished_captions_with_the_length_penalty() -> None:
    config = GenerationConfig(num_beams=2, length_penalty=1.0)
    state = make_state(1, config)
    advance(state, config, {4: -0.5, 5: -1.0})
    advance(state, config, {EOS: -0.25, 4: -2.0, 6: -4.0}, {EOS: -8.0, 5: -1.0})
    assert state.finished_scores[0, 0].tolist() == [-0.75 / 2, -torch.inf]
    assert state.finished_at[0, 0, 0].tolist() == [1, 0], "step and candidate"
    assert state.token_ids.tolist() == [[5, 4]], "an end token is not continued"


def test_an_end_token_below_the_best_candidates_does_not_finish() -> None:
    config = GenerationConfig(num_beams=1)
    state = make_state(1, config)
    advance(state, config, {4: -0.5})
    advance(state, config, {4: -0.5, EOS: -1.0})
    assert state.finished_scores.isneginf().all()


def test_compact_keeps_the_tensors_of_the_remaining_images() -> None:
    config = GenerationConfig(num_beams=2)
    state = make_state(3, config)
    advance(state, config, {4: -0.5, 5: -1.0})
    state.scores += torch.arange(3.0)[:, None]
    expected = state.scores[[0, 2]]
    state.compact([0, 2])
    assert state.rows == {0: 0, 2: 1}
    assert state.memory.features[:, 0, 0].tolist() == [0.0, 6.0]
    assert state.memory.keys[:, 0, 0].tolist() == [100.0, 106.0]
    assert state.memory.gates[:, 0, 0].tolist() == [20.0, 22.0]
    assert torch.equal(state.scores, expected)
    for tensor in (*state.decoder_state, state.token_ids, state.generated, state.finished_scores, state.finished_at):
        assert len(tensor) == 2
    assert state.history[0].rows == {0: 0, 1: 1, 2: 2}, "the history is not compacted"


def test_backtrack_follows_the_parents() -> None:
    config = GenerationConfig(num_beams=2)
    state = make_state(1, config)
    advance(state, config, {4: -0.5, 5: -1.0})
    advance(state, config, {4: -4.0, 5: -5.0}, {4: -0.5, 6: -0.25})
    advance(state, config, {5: -6.0}, {EOS: -0.125})
    (hypothesis,) = state.backtrack([0], 1)[0]
    assert hypothesis.token_ids == [5, 4]
    assert hypothesis.log_probs == [-1.0, -0.5, -0.125]
    assert hypothesis.is_finished
    assert hypothesis.attention_weights.tolist() == [[0.0], [11.0]], "10 · step + beam"


def test_backtrack_prefers_finished_captions_and_fills_up_with_truncated_ones() -> None:
    config = GenerationConfig(num_beams=2)
    state = make_state(1, config)
    advance(state, config, {4: -0.5, 5: -1.0})
    advance(state, config, {EOS: -1.5, 4: -0.25, 5: -2.0}, {6: -3.0})
    finished, truncated = state.backtrack([0], 2)[0]
    assert (finished.token_ids, finished.is_finished) == ([4], True)
    assert (truncated.token_ids, truncated.is_finished) == ([4, 4], False)
    assert sum(truncated.log_probs) > sum(finished.log_probs)


def test_backtrack_removes_duplicates_of_groups() -> None:
    config = GenerationConfig(num_beams=2, num_beam_groups=2, diversity_penalty=0.0)
    state = make_state(1, config)
    advance(state, config, {4: -0.5, 5: -1.0})
    assert [hypothesis.token_ids for hypothesis in state.backtrack([0], 2)[0]] == [[4]]


def test_backtrack_after_compact_finds_the_rows_of_previous_steps() -> None:
    config = GenerationConfig(num_beams=1)
    state = make_state(3, config)
    advance(state, config, {4: -0.5})
    state.compact([2])
    advance(state, config, {5: -0.25})
    results = state.backtrack([2], 1)
    assert list(results) == [2]
    assert results[2][0].token_ids == [4, 5]
