"""A textbook decoder with soft attention, as tutorials write it: the reference of ``make bench``.

It has one row per caption, recomputes the attention keys at each step, and searches one image at a time.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioning.preprocessing.vocabulary import Vocabulary


class TextbookDecoder(nn.Module):
    """The decoder of Xu et al. 2015 with additive attention and a gate on the context.

    Args:
        vocabulary_size: V.
        feature_size: D.
        size: size of the embeddings, the hidden state and the attention space.
    """

    def __init__(self, vocabulary_size: int, feature_size: int, size: int) -> None:
        super().__init__()
        self.key_proj = nn.Linear(feature_size, size)
        self.query_proj = nn.Linear(size, size)
        self.energy_proj = nn.Linear(size, 1)
        self.gate = nn.Linear(size, feature_size)
        self.init_hidden = nn.Linear(feature_size, size)
        self.init_cell = nn.Linear(feature_size, size)
        self.embedding = nn.Embedding(vocabulary_size, size)
        self.lstm = nn.LSTMCell(size + feature_size, size)
        self.output = nn.Linear(size, vocabulary_size)

    def start(self, features: Tensor) -> tuple[Tensor, Tensor]:
        mean = features.mean(dim=1)
        return self.init_hidden(mean), self.init_cell(mean)

    def step(self, token_ids: Tensor, state: tuple[Tensor, Tensor], features: Tensor) -> tuple[Tensor, Tensor]:
        """Previous tokens (N,), state (N, H) and features (N, L, D) -> new state."""
        hidden, _ = state
        energies = torch.tanh(self.key_proj(features) + self.query_proj(hidden)[:, None])  # (N, L, A)
        weights = self.energy_proj(energies).squeeze(2).softmax(dim=1)
        context = self.gate(hidden).sigmoid() * (features * weights[..., None]).sum(dim=1)  # (N, D)
        return self.lstm(torch.cat((self.embedding(token_ids), context), dim=1), state)

    def loss(self, features: Tensor, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """Cross-entropy of captions (N, T+1), sorted by decreasing length; features (N, L, D)."""
        state, losses = self.start(features), []
        for step in range(int(lengths.max())):
            count = int((lengths > step).sum())
            state = self.step(token_ids[:count, step], (state[0][:count], state[1][:count]), features[:count])
            logits = self.output(F.dropout(state[0], 0.5))
            losses.append(F.cross_entropy(logits, token_ids[:count, step + 1], reduction="sum"))
        return torch.stack(losses).sum() / len(lengths)

    @torch.no_grad()
    def beam_search(self, features: Tensor, num_beams: int, max_length: int) -> list[int]:
        """Most probable caption of one image (1, L, D)."""
        features = features.expand(num_beams, -1, -1)
        state = self.start(features)
        scores = torch.tensor([0.0] + [-torch.inf] * (num_beams - 1))
        sequences = torch.full((num_beams, 1), Vocabulary.BOS_ID)
        finished: list[tuple[float, list[int]]] = []
        for _ in range(max_length):
            state = self.step(sequences[:, -1], state, features[: len(sequences)])
            totals = scores[:, None] + self.output(state[0]).log_softmax(dim=1)
            scores, best = totals.flatten().topk(len(sequences))
            rows, next_ids = best // totals.shape[1], best % totals.shape[1]
            sequences = torch.cat((sequences[rows], next_ids[:, None]), dim=1)
            is_end = next_ids == Vocabulary.EOS_ID
            finished += [(float(scores[row]), sequences[row].tolist()) for row in is_end.nonzero().flatten().tolist()]
            kept = (~is_end).nonzero().flatten()
            if len(kept) == 0:
                break
            sequences, scores = sequences[kept], scores[kept]
            state = (state[0][rows[kept]], state[1][rows[kept]])
        finished += zip(scores.tolist(), sequences.tolist(), strict=True)
        return max(finished)[1][1:]
