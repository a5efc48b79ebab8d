"""LSTM decoder with attention over image features.

Architecture ``show_attend_tell``: Xu et al. 2015, "Show, Attend and Tell"; equation numbers refer to it.
Architecture ``luong``: Luong et al. 2015, "Effective Approaches to Attention-based Neural Machine Translation"; here
the LSTM also reads the mean feature at each step, as in Lu et al. 2017, "Knowing When to Look".

Shapes: B images, C captions (or beams) per image, T time steps, L locations, N tokens in the batch without padding,
V vocabulary size, D feature size, H hidden size, E embedding size.
"""

from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioning.models.attention import (
    AttentionFn,
    AttentionOutput,
    HardAttention,
    SoftAttention,
    build_attention_score,
)
from captioning.models.caption_blocks import flatten_tokens
from captioning.models.decoder_config import DEFAULT_ATTENTION_SIZE, DecoderConfig
from captioning.models.decoder_output import DecoderOutput, DecoderState, HardAttentionTrace, Memory
from captioning.models.feature_mixer import ByteDropout, FeatureMixer, SpatialDropout, drop_locations
from captioning.models.linear import Linear, linear
from captioning.models.teacher_forcing import attend_at_all_steps, run_steps
from captioning.preprocessing.vocabulary import Vocabulary


class Decoder(nn.Module):
    """LSTM language model that attends to image features at every time step.

    Args:
        vocabulary_size: V.
        feature_size: D, number of channels of the encoder features.
        num_locations: L, number of locations of the encoder features.
        settings: fields of :class:`DecoderConfig`.
    """

    def __init__(self, vocabulary_size: int, feature_size: int, num_locations: int, **settings: Any) -> None:
        super().__init__()
        config = DecoderConfig(**settings)
        self.config: dict[str, Any] = {
            "vocabulary_size": vocabulary_size,
            "feature_size": feature_size,
            "num_locations": num_locations,
            **asdict(config),
        }
        self.architecture = config.architecture
        self.is_hard = config.attention == "hard"
        # In the luong architecture the LSTM does not read the context, so a location affects only its own word.
        self.attends_after_lstm = config.architecture == "luong"
        self.hidden_size = hidden_size = config.hidden_size
        self.tie_word_embeddings = config.tie_word_embeddings
        self.word_dropout = config.word_dropout
        self.location_dropout = config.location_dropout

        self.projection: nn.Module = nn.Identity()
        if config.projection_size is not None:
            dropout = SpatialDropout(config.dropout) if config.spatial_dropout else ByteDropout(config.dropout)
            self.projection = nn.Sequential(Linear(feature_size, config.projection_size), nn.ReLU(), dropout)
            feature_size = config.projection_size
        self.feature_mixer: nn.Module = nn.Identity()
        if config.feature_mixer != "none":
            self.feature_mixer = FeatureMixer(config.feature_mixer, feature_size)
        attention_size = DEFAULT_ATTENTION_SIZE if config.attention_size is None else config.attention_size
        score = build_attention_score(config.attention_score, feature_size, hidden_size, attention_size, num_locations)
        self.attention: SoftAttention | HardAttention = (
            HardAttention(score, config.attention_temperature)
            if self.is_hard
            else SoftAttention(score, config.attention_activation)
        )
        self.context_gate: Linear | None = None  # f_β
        if config.context_gate != "none":
            self.context_gate = Linear(hidden_size, 1 if config.context_gate == "scalar" else feature_size)
        self.init_hidden = Linear(feature_size, hidden_size)  # f_init,h
        self.init_cell = Linear(feature_size, hidden_size)  # f_init,c
        self.embedding = nn.Embedding(vocabulary_size, config.embedding_size, padding_idx=Vocabulary.PAD_ID)
        # The affine map T of eq. 1, split by input, so that the part of the embeddings is one product for all steps.
        self.input_proj = Linear(config.embedding_size, 4 * hidden_size)
        self.hidden_proj = Linear(hidden_size, 4 * hidden_size, bias=False)
        self.dropout = ByteDropout(config.dropout)
        if self.architecture == "show_attend_tell":
            self.context_proj = Linear(feature_size, 4 * hidden_size, bias=False)
            self.output_hidden = Linear(hidden_size, config.embedding_size)  # L_h
            self.output_context = Linear(feature_size, config.embedding_size, bias=False)  # L_z
            output_size = config.embedding_size
        else:
            self.attentional_hidden = Linear(feature_size + hidden_size, hidden_size)  # W_c
            self.global_proj = Linear(feature_size, 4 * hidden_size, bias=False)  # of the mean feature
            output_size = hidden_size
        self.output = Linear(output_size, vocabulary_size)  # L_o
        if self.tie_word_embeddings:
            self.output.register_parameter("weight", None)  # output_logits() uses the embedding weight
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        # The default standard deviation of 1 would dominate the sum of eq. 7 and saturate its tanh.
        nn.init.normal_(self.embedding.weight, std=0.1)
        # A forget gate bias of 1 speeds up training (Jozefowicz et al. 2015).
        nn.init.ones_(self.input_proj.bias[self.hidden_size : 2 * self.hidden_size])
        # Words are ordered by frequency. By Zipf's law the frequency of the n-th word is proportional to 1/n.
        if not self.output.bias.is_meta:  # the import of the meta implementations of these operators takes a second
            ranks = torch.arange(len(self.output.bias)).sub(len(Vocabulary.SPECIAL_TOKENS) - 1).clamp(min=1)
            with torch.no_grad():
                self.output.bias.copy_(-ranks.log())

    def init_state(self, features: Tensor) -> tuple[Memory, DecoderState]:
        """Encoder features (B, L, D) -> memory, and the initial state (B, 1, H) of all captions of an image."""
        features = self.feature_mixer(self.projection(self.drop_locations(features)))
        mean = features.mean(dim=1, keepdim=True)  # (B, 1, D)
        state = DecoderState(self.init_hidden(mean).tanh(), self.init_cell(mean).tanh())
        gates = mean.new_zeros(mean.shape[0], 1, 1)
        if self.architecture == "luong":
            gates = self.global_proj(mean)
        return Memory(features, self.attention.score_fn.project_keys(features), gates), state

    def drop_locations(self, features: Tensor) -> Tensor:
        """Apply location dropout to encoder features (B, L, D). Returns them unchanged in eval mode.

        Location dropout regularizes the model and reduces computation. :meth:`init_state` calls this method. Call it
        yourself only if several passes must use the same locations, and run these passes in
        :func:`~captioning.utils.modules.eval_mode`, in which no further locations are dropped.
        """
        return drop_locations(features, 1 - self.location_dropout) if self.training else features

    def step(
        self, token_ids: Tensor, state: DecoderState, memory: Memory, attention_fn: AttentionFn | None = None
    ) -> tuple[Tensor, DecoderState, AttentionOutput]:
        """Previous tokens (B, C) -> log-probabilities of the next tokens (B, C, V), new state, attention output."""
        embeddings = self.embedding(token_ids)  # (B, C, E)
        # Beams share most of their last tokens, so each distinct token is projected once.
        distinct_ids, inverse = token_ids.unique(return_inverse=True)
        input_gates = self.input_proj(self.embedding(distinct_ids))[inverse.view_as(token_ids)]  # (B, C, 4H)
        state, attention = self.attend_and_step(input_gates, state, memory, attention_fn)
        logits = self.output_logits(embeddings, state.hidden, attention.context)  # (B, C, V)
        return logits.log_softmax(dim=-1), state, attention

    def forward(
        self,
        features: Tensor,
        token_ids: Tensor,
        lengths: Tensor,
        attention_fn: AttentionFn | None = None,
        input_ids: Tensor | None = None,
        num_samples: int = 1,
    ) -> DecoderOutput:
        """Teacher forcing.

        Args:
            features: (B, L, D).
            token_ids: (B, C, T+1), from the start token to the end token, followed by padding.
            lengths: (B, C) **on the CPU**, number of target tokens including the end token; 0 for no caption.
            attention_fn: attention function; None selects the default of the attention module.
            input_ids: (B, C, T+1), input tokens in place of ``token_ids``, e.g. for scheduled sampling. The targets
                remain those of ``token_ids``.
            num_samples: S, number of location sequences that hard attention samples for each caption. The output has
                C · S captions per image, the samples of a caption next to each other.
        """
        memory, state = self.init_state(features)
        num_steps = int(lengths.max())
        input_ids = self._drop_words((token_ids if input_ids is None else input_ids)[..., :num_steps])
        distinct_ids, inverse = input_ids.unique(return_inverse=True)  # a frequent word is projected once
        distinct_embeddings = self.embedding(distinct_ids)
        projected = self.input_proj(distinct_embeddings)
        sampled_ids, lengths, sampled_inverse = (
            ids.repeat_interleave(num_samples, dim=1) for ids in (token_ids, lengths, inverse)
        )
        if self.attends_after_lstm:
            input_gates = F.embedding(inverse.permute(2, 0, 1), projected)  # (T, B, C, 4H)
            steps = attend_at_all_steps(self, input_gates, state, memory, lengths, attention_fn, num_samples)
        else:
            input_gates = F.embedding(sampled_inverse.permute(2, 0, 1), projected)  # (T, B, C · S, 4H)
            steps = run_steps(self, input_gates, state, memory, lengths, attention_fn)
        token_ids, inverse = sampled_ids, sampled_inverse
        hidden, context = steps.hidden, steps.context
        # Hard attention uses one-hot weights, so its α is computed from the scores.
        attention_weights = steps.weights if steps.scores is None else steps.scores.softmax(dim=-1)

        token_mask = torch.arange(num_steps) < lengths[..., None]  # (B, C, T)
        # The index is computed on the CPU, since nonzero() on the GPU synchronizes.
        index = token_mask.flatten().nonzero().squeeze(1).to(token_ids.device)  # (N,)
        hidden, context = (flatten_tokens(x, index) for x in (hidden, context))  # (N, ·)
        embeddings = F.embedding(inverse.flatten()[index], distinct_embeddings)  # (N, E)
        logits = self.output_logits(embeddings, hidden, context)  # (N, V), without padding
        targets = token_ids[..., 1 : num_steps + 1].flatten()[index]  # (N,)
        trace = None
        if steps.scores is not None:
            log_probs = flatten_tokens(steps.scores, index).log_softmax(dim=-1)  # (N, L)
            queries = (steps.locations, steps.query_hidden, steps.query_cell)
            locations, *query = (flatten_tokens(x, index) for x in queries if x is not None)
            token_index = token_mask.nonzero().to(token_ids.device)  # (N, 3)
            trace = HardAttentionTrace(
                token_index, log_probs, locations.squeeze(1), DecoderState(*query), embeddings, memory.features
            )
        attention_weights = attention_weights * token_mask[..., None].to(token_ids.device)  # (B, C, T, L)
        return DecoderOutput(logits, targets, attention_weights, token_mask, trace)

    def _drop_words(self, input_ids: Tensor) -> Tensor:
        """Word dropout of input tokens (B, C, T) in training mode."""
        if self.training and self.word_dropout:
            dropped = torch.rand(input_ids.shape, device=input_ids.device) < self.word_dropout
            input_ids = input_ids.masked_fill(dropped, Vocabulary.UNK_ID)
        return input_ids

    def logits_at_locations(self, trace: HardAttentionTrace, locations: Tensor) -> Tensor:
        """Logits of each token if hard attention had attended to other locations at this token only.

        Args:
            trace: trace of a forward pass.
            locations: (N, K), K locations for each token.

        Returns:
            logits (N, K, V).
        """
        state = DecoderState(*(x[:, None] for x in trace.state))  # (N, 1, H)
        context = trace.features[trace.token_index[:, :1], locations]  # (N, K, D)
        context, _ = self._gate_context(state.hidden, context)
        embeddings = trace.input_embeddings[:, None]  # (N, 1, E)
        hidden = state.hidden
        if self.architecture == "show_attend_tell":
            gates = self.input_proj(embeddings) + self.context_proj(context)  # (N, K, 4H)
            hidden = self.lstm_cell(gates, state).hidden  # (N, K, H)
        return self.output_logits(embeddings, hidden.expand(-1, locations.shape[1], -1), context)

    def attend_and_step(
        self, input_gates: Tensor, state: DecoderState, memory: Memory, attention_fn: AttentionFn | None = None
    ) -> tuple[DecoderState, AttentionOutput]:
        """One attention step and one LSTM step (eqs 1-6), given the projected input embeddings (B, C, 4H)."""
        input_gates = input_gates + memory.gates
        if self.architecture == "show_attend_tell":
            attention = self.attend(state.hidden, memory, attention_fn)
            return self.lstm_cell(input_gates + self.context_proj(attention.context), state), attention
        state = self.lstm_cell(input_gates, state)
        return state, self.attend(state.hidden, memory, attention_fn)

    def output_logits(self, embeddings: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Deep output layer (eq. 7): L_o tanh(E y + L_h h + L_z z). Luong et al.: L_o tanh(W_c [z; h])."""
        hidden = self.dropout(hidden)
        if self.architecture == "show_attend_tell":
            combined = embeddings + self.output_hidden(hidden) + self.output_context(context)
        else:
            combined = self.attentional_hidden(torch.cat((context, hidden), dim=-1))
        combined = self.dropout(combined.tanh())
        if self.tie_word_embeddings:
            return linear(combined, self.embedding.weight, self.output.bias)
        return self.output(combined)

    def attend(self, hidden: Tensor, memory: Memory, attention_fn: AttentionFn | None) -> AttentionOutput:
        attention = self.attention(hidden, memory.keys, memory.features, attention_fn)
        context, gate = self._gate_context(hidden, attention.context)
        return attention._replace(context=context, context_gate=None if gate is None else gate.mean(dim=-1))

    def _gate_context(self, hidden: Tensor, context: Tensor) -> tuple[Tensor, Tensor | None]:
        """z ← β z with β = σ(f_β(h)) (section 4.2.1). Returns β z, and β or None without a gate."""
        if self.context_gate is None:
            return context, None
        gate = self.context_gate(hidden).sigmoid()
        return gate * context, gate

    def lstm_cell(self, gates: Tensor, state: DecoderState) -> DecoderState:
        """Eqs 1-3, given the part of the gates (B, C, 4H) that does not depend on the hidden state."""
        gates = gates + self.hidden_proj(state.hidden)
        sigmoid_gates, candidate = gates.split((3 * self.hidden_size, self.hidden_size), dim=-1)
        i, f, o = sigmoid_gates.sigmoid().chunk(3, dim=-1)
        cell = f * state.cell + i * candidate.tanh()  # eq. 2
        return DecoderState(o * cell.tanh(), cell)  # eq. 3
