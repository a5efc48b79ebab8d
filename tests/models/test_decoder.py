"""Behavior of the decoder. test_decoder_reference.py tests its equations."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from captioning.models import attention
from captioning.models.attention import AttentionFn
from captioning.models.caption_blocks import active_blocks
from captioning.models.decoder import Decoder
from captioning.models.feature_mixer import SpatialDropout
from captioning.objectives.base import caption_nll
from captioning.objectives.location_samples import attend_sequence
from captioning.objectives.terms import doubly_stochastic_penalty
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError
from captioning.utils.modules import eval_mode

NUM_LOCATIONS, FEATURE_SIZE, HIDDEN_SIZE, VOCABULARY_SIZE = 6, 8, 8, 11
ARCHITECTURES = ("show_attend_tell", "luong")


def make_decoder(**settings) -> Decoder:
    torch.manual_seed(0)
    defaults = {"embedding_size": 5, "hidden_size": HIDDEN_SIZE, "dropout": 0.0}
    if settings.get("attention_score", "additive") in ("additive", "scaled_dot"):
        defaults["attention_size"] = 4
    decoder = Decoder(VOCABULARY_SIZE, FEATURE_SIZE, NUM_LOCATIONS, **{**defaults, **settings})
    with torch.no_grad():  # larger than the initialization, so that every term of a sum affects the result
        for parameter in decoder.parameters():
            parameter.normal_(std=0.5)
    return decoder


def make_batch(lengths: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Random features (B, L, D), token ids (B, C, T+1) and lengths (B, C)."""
    generator = torch.Generator().manual_seed(1)
    num_images, num_captions, max_length = len(lengths), len(lengths[0]), max(map(max, lengths))
    features = torch.randn(num_images, NUM_LOCATIONS, FEATURE_SIZE, generator=generator)
    token_ids = torch.full((num_images, num_captions, max_length + 1), Vocabulary.PAD_ID)
    for image, caption in itertools.product(range(num_images), range(num_captions)):
        length = lengths[image][caption]
        if length:
            words = torch.randint(4, VOCABULARY_SIZE, (length - 1,), generator=generator)
            ids = [Vocabulary.BOS_ID, *words.tolist(), Vocabulary.EOS_ID]
            token_ids[image, caption, : len(ids)] = torch.tensor(ids)
    return features, token_ids, torch.tensor(lengths)


def decoder_loss(
    decoder: Decoder, features: Tensor, token_ids: Tensor, lengths: Tensor, locations: Tensor | None = None
) -> Tensor:
    output = decoder(features, token_ids, lengths, None if locations is None else attend_sequence(locations, decoder))
    num_captions = int((lengths > 0).sum())
    nll = caption_nll(output.logits, output.targets, num_captions)
    return nll + doubly_stochastic_penalty(output.attention_weights, num_captions)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_step_equals_teacher_forcing(architecture: str) -> None:
    decoder = make_decoder(architecture=architecture).eval()
    features, token_ids, lengths = make_batch([[5], [5]])
    output = decoder(features, token_ids, lengths)
    assert output.attention_trace is None
    memory, state = decoder.init_state(features)
    for step in range(5):
        log_probs, state, attended = decoder.step(token_ids[..., step], state, memory)
        expected = output.logits.unflatten(0, (2, 1, 5))[:, :, step].log_softmax(-1)
        torch.testing.assert_close(log_probs, expected)
        torch.testing.assert_close(attended.weights, output.attention_weights[:, :, step])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_hard_step_equals_teacher_forcing(architecture: str) -> None:
    decoder = make_decoder(architecture=architecture, attention="hard").eval()
    features, token_ids, lengths = make_batch([[5], [5]])
    output = decoder(features, token_ids, lengths)  # argmax
    memory, state = decoder.init_state(features)
    for step in range(5):
        log_probs, state, attended = decoder.step(token_ids[..., step], state, memory)
        torch.testing.assert_close(log_probs, output.logits.unflatten(0, (2, 1, 5))[:, :, step].log_softmax(-1))
        torch.testing.assert_close(attended.scores.softmax(-1), output.attention_weights[:, :, step])
        locations = output.attention_trace.locations.unflatten(0, (2, 5))[:, step]
        assert torch.equal(attended.locations.flatten(), locations)


@pytest.mark.parametrize("feature_mixer", ["none", "mean", "self_attention"])
@pytest.mark.parametrize("context_gate", ["none", "scalar", "vector"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_at_locations_change_one_token_only(architecture: str, context_gate: str, feature_mixer: str) -> None:
    """The previous tokens keep their locations; only the token itself attends to another location."""
    decoder = make_decoder(
        architecture=architecture, context_gate=context_gate, feature_mixer=feature_mixer, attention="hard"
    ).eval()
    features, token_ids, lengths = make_batch([[4, 3], [2, 4]])
    locations = torch.randint(NUM_LOCATIONS, (2, 2, 4), generator=torch.Generator().manual_seed(3))
    output = decoder(features, token_ids, lengths, attend_sequence(locations, decoder))
    alternatives = torch.randint(
        NUM_LOCATIONS, (len(output.targets), 3), generator=torch.Generator().manual_seed(4)
    )  # (N, K)
    logits = decoder.logits_at_locations(output.attention_trace, alternatives)
    assert logits.shape == (4 + 3 + 2 + 4, 3, VOCABULARY_SIZE)
    for token, (image, caption, step) in enumerate(output.attention_trace.token_index.tolist()):
        for k, alternative in enumerate(alternatives[token]):
            changed = locations.clone()
            changed[image, caption, step] = alternative
            expected = decoder(features, token_ids, lengths, attend_sequence(changed, decoder))
            torch.testing.assert_close(logits[token, k], expected.logits[token])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_hard_attention_does_not_depend_on_unattended_locations(architecture: str) -> None:
    """With argmax, changing an unattended location leaves the log-probabilities unchanged; soft attention changes."""
    decoder = make_decoder(architecture=architecture, attention="hard").eval()
    features, token_ids, _ = make_batch([[5]])
    initial_memory, initial_state = decoder.init_state(
        features
    )  # held fixed, since it depends on the mean of all locations

    def run(features: Tensor, attention_fn: AttentionFn = attention.attend_argmax) -> tuple[list[Tensor], list[int]]:
        memory = initial_memory._replace(features=features, keys=decoder.attention.score_fn.project_keys(features))
        state, all_log_probs, locations = initial_state, [], []
        for step in range(5):
            log_probs, state, attended = decoder.step(token_ids[..., step], state, memory, attention_fn)
            all_log_probs.append(log_probs)
            locations.append(int(attended.weights.argmax()))
        return all_log_probs, locations

    def is_equal(first: list[Tensor], second: list[Tensor]) -> bool:
        return all(torch.equal(x, y) for x, y in zip(first, second, strict=True))

    log_probs, attended_locations = run(features)
    unattended = set(range(NUM_LOCATIONS)) - set(attended_locations)
    assert unattended
    num_changes = 0
    for location in unattended:
        for scale in (0.01, 0.1, -0.3):
            changed = features.clone()
            noise = torch.randn(FEATURE_SIZE, generator=torch.Generator().manual_seed(location))
            changed[:, location] += scale * noise
            changed_log_probs, changed_locations = run(changed)
            if changed_locations != attended_locations:  # the change moved the argmax
                continue
            num_changes += 1
            assert is_equal(log_probs, changed_log_probs)
            soft, changed_soft = (run(x, attention.attend_expectation)[0] for x in (features, changed))
            assert not is_equal(soft, changed_soft), "soft attention must depend on every location"
    assert num_changes >= len(unattended)


def test_projection_is_applied_before_attention() -> None:
    decoder = make_decoder(projection_size=5).eval()
    features, token_ids, lengths = make_batch([[4, 2], [3, 3]])
    config = {**decoder.config, "feature_size": 5, "projection_size": None}
    unprojected = Decoder(**config).eval()
    unprojected.load_state_dict(
        {key: value for key, value in decoder.state_dict().items() if not key.startswith("projection")}
    )
    linear, relu = decoder.projection[0], decoder.projection[1]
    projected = relu(features @ linear.weight.T + linear.bias)
    expected = unprojected(projected, token_ids, lengths)
    torch.testing.assert_close(decoder(features, token_ids, lengths), expected)


def test_spatial_dropout_replaces_the_dropout_of_the_projection() -> None:
    assert isinstance(make_decoder(projection_size=4, spatial_dropout=True).projection[2], SpatialDropout)
    assert not isinstance(make_decoder(projection_size=4).projection[2], SpatialDropout)


def test_location_dropout_applies_in_training_mode_only() -> None:
    """Half of the locations are kept, a different subset per image and call; the kept features are unchanged."""
    decoder = make_decoder(location_dropout=0.5)
    features = make_batch([[4, 2], [3, 3]])[0]
    memory, _ = decoder.init_state(features)
    assert memory.features.shape == (2, NUM_LOCATIONS // 2, FEATURE_SIZE)
    kept = [
        [(features[image] == row).all(dim=-1).nonzero().item() for row in rows]
        for image, rows in enumerate(memory.features)
    ]
    assert kept[0] != kept[1]
    assert all(locations == sorted(set(locations)) for locations in kept)
    assert not torch.equal(decoder.init_state(features)[0].features, memory.features)
    assert torch.equal(decoder.eval().init_state(features)[0].features, features)


def test_dropped_locations_are_kept_within_eval_mode() -> None:
    decoder = make_decoder(location_dropout=0.5)
    features = decoder.drop_locations(make_batch([[4, 2], [3, 3]])[0])
    with eval_mode(decoder):
        assert torch.equal(decoder.init_state(features)[0].features, features)


def test_eval_mode_restores_the_mode_of_every_submodule() -> None:
    decoder = make_decoder(projection_size=4)
    decoder.projection.eval()
    modes = [module.training for module in decoder.modules()]
    with eval_mode(decoder):
        assert not any(module.training for module in decoder.modules())
    assert [module.training for module in decoder.modules()] == modes

    def fail() -> None:
        with eval_mode(decoder):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [module.training for module in decoder.modules()] == modes


def test_initial_output_bias_follows_zipfs_law() -> None:
    """Before training, the most frequent word is twice as probable as the second one."""
    decoder = Decoder(VOCABULARY_SIZE, FEATURE_SIZE, NUM_LOCATIONS)
    first, second, third = decoder.output.bias[len(Vocabulary.SPECIAL_TOKENS) :][:3].exp().tolist()
    assert (first / second, first / third) == pytest.approx((2, 3))


def test_tied_output_layer_uses_the_embedding_weight() -> None:
    decoder = make_decoder(tie_word_embeddings=True).eval()
    assert "output.weight" not in decoder.state_dict()
    untied = make_decoder().eval()
    untied.load_state_dict({**decoder.state_dict(), "output.weight": decoder.embedding.weight})
    batch = make_batch([[4, 2], [3, 3]])
    torch.testing.assert_close(decoder(*batch), untied(*batch))
    luong = make_decoder(tie_word_embeddings=True, architecture="luong", embedding_size=HIDDEN_SIZE)
    assert luong.tie_word_embeddings


def test_word_dropout_replaces_inputs_but_not_targets_in_training_mode_only() -> None:
    decoder = make_decoder(word_dropout=0.5)
    decoder.word_dropout = 1.0  # outside the valid range, to replace every input
    features, token_ids, lengths = make_batch([[4, 2], [3, 3]])
    unknown = torch.where(token_ids == Vocabulary.PAD_ID, token_ids, torch.full_like(token_ids, Vocabulary.UNK_ID))
    output = decoder(features, token_ids, lengths)
    assert torch.equal(output.targets, make_decoder()(features, token_ids, lengths).targets)
    torch.testing.assert_close(output.logits, decoder.eval()(features, unknown, lengths).logits)
    expected = make_decoder().eval()(features, token_ids, lengths)
    torch.testing.assert_close(decoder(features, token_ids, lengths), expected)


def test_input_ids_replace_the_inputs_but_not_the_targets() -> None:
    decoder = make_decoder().eval()
    features, token_ids, lengths = make_batch([[4, 2], [3, 3]])
    input_ids = torch.where(token_ids == Vocabulary.PAD_ID, token_ids, torch.full_like(token_ids, Vocabulary.UNK_ID))
    output = decoder(features, token_ids, lengths, input_ids=input_ids)
    assert torch.equal(output.targets, decoder(features, token_ids, lengths).targets)
    assert torch.equal(output.logits, decoder(features, input_ids, lengths).logits)


def test_padding_does_not_change_the_loss() -> None:
    decoder = make_decoder()
    features, token_ids, lengths = make_batch([[3, 2]])
    padded = F.pad(token_ids, (0, 4), value=Vocabulary.PAD_ID)
    with_empty_caption = F.pad(padded, (0, 0, 0, 1), value=Vocabulary.PAD_ID), F.pad(lengths, (0, 1))
    expected = decoder_loss(decoder, features, token_ids, lengths)
    torch.testing.assert_close(decoder_loss(decoder, features, padded, lengths), expected)
    torch.testing.assert_close(decoder_loss(decoder, features, *with_empty_caption), expected)


def test_keys_inputs_and_outputs_are_projected_once_per_batch() -> None:
    """Neither the keys nor the product with the vocabulary may be recomputed per step or per caption.

    Each distinct input token is projected once.
    """
    decoder = make_decoder(attention_score="additive")
    calls: dict[str, list[torch.Size]] = {"key_proj": [], "output": [], "input_proj": []}
    for name, layer in (
        ("key_proj", decoder.attention.score_fn.key_proj),
        ("output", decoder.output),
        ("input_proj", decoder.input_proj),
    ):
        layer.register_forward_hook(lambda _, inputs, __, name=name: calls[name].append(inputs[0].shape))
    features, token_ids, lengths = make_batch([[3, 5], [6, 2]])
    decoder(features, token_ids, lengths)
    assert (
        calls
        == {
            "key_proj": [features.shape],
            "output": [torch.Size((3 + 5 + 6 + 2, 5))],  # without padding
            "input_proj": [torch.Size((len(token_ids[..., :6].unique()), 5))],
        }
    )


def test_attention_weights_depend_on_the_token() -> None:
    """tanh(W_a a) + tanh(W_h h) in place of tanh(W_a a + W_h h) would give every token the same weights."""
    decoder = make_decoder(attention_score="additive").eval()
    features, token_ids, lengths = make_batch([[6]])
    weights = decoder(features, token_ids, lengths).attention_weights[0, 0]  # (T, L)
    assert all((current - following).abs().max() > 1e-3 for current, following in itertools.pairwise(weights))


@pytest.mark.parametrize("attention_type", ["soft", "hard"])
def test_attention_weights_sum_to_one_at_tokens_and_zero_at_padding(attention_type: str) -> None:
    decoder = make_decoder(attention=attention_type)
    output = decoder(*make_batch([[2, 4], [3, 1]]))
    torch.testing.assert_close(output.attention_weights.sum(-1), output.token_mask.float())


@pytest.mark.parametrize("attention_type", ["soft", "hard"])
def test_token_mask_selects_the_tokens(attention_type: str) -> None:
    decoder = make_decoder(attention=attention_type)
    features, token_ids, lengths = make_batch([[2, 4], [3, 0]])
    output = decoder(features, token_ids, lengths)
    assert output.token_mask.dtype == torch.bool
    assert output.token_mask.device.type == "cpu"
    assert output.token_mask.int().tolist() == [[[1, 1, 0, 0], [1, 1, 1, 1]], [[1, 1, 1, 0], [0, 0, 0, 0]]]
    assert torch.equal(output.targets, token_ids[..., 1:][output.token_mask])


def test_active_block_shrinks_as_captions_end() -> None:
    assert active_blocks(torch.tensor([[4, 2], [1, 1]])) == [(2, 2), (1, 2), (1, 1), (1, 1)]


def test_dot_score_requires_equal_sizes() -> None:
    with pytest.raises(CaptioningError, match=r"'dot' requires hidden_size equal to the feature size 8, but .* is 4"):
        Decoder(VOCABULARY_SIZE, FEATURE_SIZE, NUM_LOCATIONS, hidden_size=4, attention_score="dot")
