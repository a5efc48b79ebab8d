"""The LSTM that reads annotations through attention and says one word after another.

Xu et al. 2015, "Show, Attend and Tell" (wiring ``paper``; equation numbers are theirs), and Luong et al. 2015,
"Effective Approaches to Attention-based Neural Machine Translation" (wiring ``luong``).

Shapes: B pictures, C captions (or beams) of each, T words, L places; D, H, E widths of annotation, state and embedding.
"""

from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioning.annotations import DropoutOfPictures, NeighbourName, Neighbours, some_places
from captioning.attention import (
    AttentionName,
    Choose,
    HardAttention,
    Look,
    ScoreName,
    SoftAttention,
    make_score,
)
from captioning.errors import CaptioningError
from captioning.text import Vocabulary

Wiring = Literal["paper", "luong"]
Gate = Literal["none", "scalar", "vector"]
DropoutBy = Literal["place", "picture"]


class Memory(NamedTuple):
    """What the decoder reads of each picture, made once and shared by all its captions."""

    annotations: Tensor  # (B, L, D)
    keys: Tensor  # (B, L, A)


class State(NamedTuple):
    """What the LSTM carries from word to word."""

    hidden: Tensor  # (B, C, H)
    cell: Tensor  # (B, C, H)


class Reading(NamedTuple):
    """A batch of captions read by teacher forcing; only real words are in ``logits``, no padding."""

    logits: Tensor  # (N, V), N real words of the batch
    targets: Tensor  # (N,)
    weights: Tensor  # (B, C, T, L), α, zero where a caption has ended
    looks: "Looks | None"  # of hard attention


class Looks(NamedTuple):
    """How the words of a reading were looked up, and from where they could be looked up again."""

    where: Tensor  # (N, 3), each word's picture, caption and step
    log_chances: Tensor  # (N, L), log α
    places: Tensor  # (N,), the one place looked at, -1 where all count
    state: State  # (N, H), the state that looked
    embedded: Tensor  # (N, E), the word before
    annotations: Tensor  # (B, L, D), as the decoder reads them


class Decoder(nn.Module):
    """Attend, step, say.

    Args:
        vocabulary_size: V, how many words it can say.
        annotation_size: D, the encoder's width.
        places: L, cells of the encoder's grid.
        squash: width that annotations are brought to first, by a linear map, ReLU and dropout; 0 for none of it.
        embedding_size: E, width of a word's embedding.
        hidden_size: H, width of the LSTM.
        attention_size: A, width in which ``additive`` and ``scaled_dot`` compare places with the state.
        attention: ``soft`` looks everywhere at once, ``hard`` at one place at a time.
        temperature: of hard attention: α = softmax(score / temperature).
        score: how a place is scored against the state.
        wiring: ``paper`` attends with the last state, then steps; ``luong`` steps, then attends with the new state.
        gate: β, how much of the context is let in: ``none``, one ``scalar`` as in the paper, or a ``vector``.
        neighbours: what lets annotations know each other before they are read.
        tied: the output layer takes the embeddings as its weights.
        dropout: on squashed annotations, on the state and before the vocabulary.
        dropout_by: what it leaves out of squashed annotations is others at each ``place``, or the same at all places of
            a ``picture``, so that it is harder to learn by heart.
        word_dropout: share of the words before, in training, that it is not told.
        place_dropout: share of a picture's places, in training, that it is not shown; others each time.
    """

    def __init__(
        self,
        vocabulary_size: int,
        annotation_size: int,
        places: int,
        squash: int = 0,
        embedding_size: int = 256,
        hidden_size: int = 512,
        attention_size: int = 256,
        attention: AttentionName = "soft",
        temperature: float = 1.0,
        score: ScoreName = "additive",
        wiring: Wiring = "paper",
        gate: Gate = "scalar",
        neighbours: NeighbourName = "none",
        tied: bool = False,
        dropout: float = 0.3,
        dropout_by: DropoutBy = "place",
        word_dropout: float = 0.0,
        place_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, given, choices in (
            ("attention", attention, AttentionName),
            ("wiring", wiring, Wiring),
            ("gate", gate, Gate),
            ("dropout_by", dropout_by, DropoutBy),
        ):
            if given not in get_args(choices):
                raise CaptioningError(f"unknown {name} '{given}'; choose {', '.join(get_args(choices))}")
        if dropout_by == "picture" and not squash:
            raise CaptioningError("dropout_by 'picture' is of squashed annotations: set squash to a width")
        if place_dropout and score == "location":
            raise CaptioningError("score 'location' knows places by their number: it wants place_dropout 0")
        if not 0 <= place_dropout < 1:
            raise CaptioningError(f"place_dropout {place_dropout}: a share from 0 to below 1")
        self.settings = {
            "vocabulary_size": vocabulary_size,
            "annotation_size": annotation_size,
            "places": places,
            "squash": squash,
            "embedding_size": embedding_size,
            "hidden_size": hidden_size,
            "attention_size": attention_size,
            "attention": attention,
            "temperature": temperature,
            "score": score,
            "wiring": wiring,
            "gate": gate,
            "neighbours": neighbours,
            "tied": tied,
            "dropout": dropout,
            "dropout_by": dropout_by,
            "word_dropout": word_dropout,
            "place_dropout": place_dropout,
        }
        self.wiring = wiring
        self.hard = attention == "hard"
        self.word_dropout = word_dropout
        self.place_dropout = place_dropout
        self.squash: nn.Module = nn.Identity()
        if squash:
            leave_out = DropoutOfPictures(dropout) if dropout_by == "picture" else nn.Dropout(dropout)
            self.squash = nn.Sequential(nn.Linear(annotation_size, squash), nn.ReLU(), leave_out)
            annotation_size = squash
        self.neighbours = nn.Identity() if neighbours == "none" else Neighbours(neighbours, annotation_size)
        scores = make_score(score, annotation_size, hidden_size, attention_size, places)
        self.attention = SoftAttention(scores) if attention == "soft" else HardAttention(scores, temperature)
        self.gate = None if gate == "none" else nn.Linear(hidden_size, 1 if gate == "scalar" else annotation_size)
        self.start_hidden = nn.Linear(annotation_size, hidden_size)
        self.start_cell = nn.Linear(annotation_size, hidden_size)
        self.embedding = nn.Embedding(vocabulary_size, embedding_size, padding_idx=Vocabulary.PAD)
        # The LSTM's one product W [E y, z, h] in three parts, since the words are known for all steps at once.
        self.word_gates = nn.Linear(embedding_size, 4 * hidden_size)
        self.state_gates = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.dropout = nn.Dropout(dropout)
        if wiring == "paper":
            self.context_gates = nn.Linear(annotation_size, 4 * hidden_size, bias=False)
            self.output_hidden = nn.Linear(hidden_size, embedding_size)  # L_h
            self.output_context = nn.Linear(annotation_size, embedding_size, bias=False)  # L_z
            output_size = embedding_size
        else:
            self.combine = nn.Linear(annotation_size + hidden_size, hidden_size)  # W_c
            output_size = hidden_size
        if tied and output_size != embedding_size:
            raise CaptioningError(
                f"'tied' in wiring '{wiring}' needs embedding_size {embedding_size} equal to hidden_size {hidden_size}"
            )
        self.output = nn.Linear(output_size, vocabulary_size)  # L_o
        self.tied = tied
        if tied:  # its weights are the embeddings'
            self.output.register_parameter("weight", None)
        self._initialise()

    def _initialise(self) -> None:
        # Torch's own embeddings (standard deviation 1) would drown what is seen in eq. 7, and saturate its tanh.
        nn.init.normal_(self.embedding.weight, std=0.1)
        # An LSTM that begins by keeping its state learns sooner (Jozefowicz et al. 2015).
        forget = self.word_gates.bias.shape[0] // 4
        nn.init.ones_(self.word_gates.bias[forget : 2 * forget])
        # The most frequent words come first, and by Zipf's law the n-th is said 1/n as often as the first.
        if not self.output.bias.is_meta:  # whose operators take a second to import
            ranks = torch.arange(len(self.output.bias)).sub(len(Vocabulary.MARKS) - 1).clamp(min=1)
            with torch.no_grad():
                self.output.bias.copy_(-ranks.log())

    def start(self, annotations: Tensor) -> tuple[Memory, State]:
        """Annotations (B, L, D) → the memory of each picture, and one state (B, 1, H) to begin from."""
        annotations = self.neighbours(self.squash(self.show(annotations)))
        mean = annotations.mean(dim=1, keepdim=True)  # (B, 1, D)
        state = State(self.start_hidden(mean).tanh(), self.start_cell(mean).tanh())
        return Memory(annotations, self.attention.score.keys(annotations)), state

    def show(self, annotations: Tensor) -> Tensor:
        """Annotations (B, L, D) without those that ``place_dropout`` leaves out: in training no picture looks the same
        twice, so that none is learnt by heart, and there is less to compute."""
        return some_places(annotations, 1 - self.place_dropout) if self.training else annotations

    def step(
        self, words: Tensor, state: State, memory: Memory, choose: Choose | None = None
    ) -> tuple[Tensor, State, Look]:
        """The last words (B, C) → log-probabilities (B, C, V) of the next, the new state, and where it looked."""
        embedded = self.embedding(words)  # (B, C, E)
        # Most beams end in one of a few words: what each does to the gates is computed once.
        different, which = words.unique(return_inverse=True)
        gates = self.word_gates(self.embedding(different))[which]  # (B, C, 4H)
        state, look = self.advance(gates, state, memory, choose)
        return self.logits(embedded, state.hidden, look.context).log_softmax(dim=-1), state, look

    def forward(
        self,
        annotations: Tensor,
        words: Tensor,
        lengths: Tensor,
        choose: Choose | None = None,
        told: Tensor | None = None,
    ) -> Reading:
        """Read captions by teacher forcing.

        Args:
            annotations: (B, L, D).
            words: (B, C, T+1) ids from the start mark to the end mark, padded after it.
            lengths: (B, C) **on the CPU**: words to be said of each caption, end mark included; 0 for no caption.
            choose: how hard attention looks.
            told: what it is told that the words (B, C, T+1) were, if not the truth.
        """
        memory, state = self.start(annotations)
        annotations = memory.annotations  # by now they may know their neighbours
        pictures, captions, steps = words.shape[0], words.shape[1], int(lengths.max())
        before = (words if told is None else told)[..., :steps]
        if self.training and self.word_dropout:
            before = before.masked_fill(
                torch.rand(before.shape, device=before.device) < self.word_dropout, Vocabulary.UNKNOWN
            )
        embedded = self.embedding(before)  # (B, C, T, E)
        # All steps in one product; unbound once, since the gradient of a slice is as large as what it was cut from.
        word_gates = self.word_gates(embedded).unbind(2)  # T × (B, C, 4H)
        state = State(*(part.expand(-1, captions, -1) for part in state))

        taken: list[list[Tensor]] = []
        for gates, (some_pictures, some_captions) in zip(word_gates, _running(lengths), strict=True):
            if state.hidden.shape[:2] != (some_pictures, some_captions):
                state = State(*(part[:some_pictures, :some_captions] for part in state))
                memory = Memory(*(part[:some_pictures] for part in memory))
            last = state
            state, look = self.advance(gates[:some_pictures, :some_captions], last, memory, choose)
            parts = [state.hidden, look.context]
            if self.hard:
                looking = last if self.wiring == "paper" else state
                parts += [look.scores, look.places[..., None], looking.hidden, looking.cell]
            else:
                parts += [look.weights]
            ended = (0, 0, 0, captions - some_captions, 0, pictures - some_pictures)
            taken.append([F.pad(part, ended) for part in parts])

        said, seen, *looked = (torch.stack(part, 2) for part in zip(*taken, strict=True))  # (B, C, T, ·)
        weights = looked[0].softmax(dim=-1) if self.hard else looked[0]
        is_word = torch.arange(steps) < lengths[..., None]  # (B, C, T)
        # The index is found on the CPU: a mask on the GPU would make it wait for the count.
        real = is_word.flatten().nonzero().squeeze(1).to(words.device)
        embedded, said, seen = (part.flatten(0, 2)[real] for part in (embedded, said, seen))  # (N, ·)
        logits = self.logits(embedded, said, seen)  # one product over the real words
        targets = words[..., 1 : steps + 1].flatten()[real]
        looks = None
        if self.hard:
            scores, places, hidden, cell = (part.flatten(0, 2)[real] for part in looked)
            where = is_word.nonzero().to(words.device)
            looks = Looks(
                where, scores.log_softmax(dim=-1), places.squeeze(1), State(hidden, cell), embedded, annotations
            )
        return Reading(logits, targets, weights * is_word[..., None].to(words.device), looks)

    def elsewhere(self, looks: Looks, places: Tensor) -> Tensor:
        """What the words of a reading would have been, had they been looked up at other places.

        Args:
            looks: of the reading.
            places: (N, K), K places for each of its words; each word alone is looked up there, not those before it.

        Returns:
            logits (N, K, V).
        """
        state = State(*(part[:, None] for part in looks.state))  # (N, 1, H)
        context = looks.annotations[looks.where[:, :1], places]  # (N, K, D)
        context = self._let_in(state.hidden, context)
        embedded = looks.embedded[:, None]  # (N, 1, E)
        hidden = state.hidden
        if self.wiring == "paper":
            hidden = self._lstm(self.word_gates(embedded) + self.context_gates(context), state).hidden  # (N, K, H)
        return self.logits(embedded, hidden.expand(-1, places.shape[1], -1), context)

    def advance(
        self, word_gates: Tensor, state: State, memory: Memory, choose: Choose | None = None
    ) -> tuple[State, Look]:
        """One step of the LSTM and one look, the core that training and search share (eqs 1-3)."""
        if self.wiring == "paper":
            look = self._look(state.hidden, memory, choose)
            return self._lstm(word_gates + self.context_gates(look.context), state), look
        state = self._lstm(word_gates, state)
        return state, self._look(state.hidden, memory, choose)

    def logits(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Deep output (eq. 7): L_o tanh(E y + L_h h + L_z z); Luong: W tanh(W_c [z; h])."""
        hidden = self.dropout(hidden)
        if self.wiring == "paper":
            mixed = embedded + self.output_hidden(hidden) + self.output_context(context)
        else:
            mixed = self.combine(torch.cat((context, hidden), dim=-1))
        mixed = self.dropout(mixed.tanh())
        return F.linear(mixed, self.embedding.weight, self.output.bias) if self.tied else self.output(mixed)

    def _look(self, hidden: Tensor, memory: Memory, choose: Choose | None) -> Look:
        look = self.attention(hidden, memory.keys, memory.annotations, choose)
        return look._replace(context=self._let_in(hidden, look.context))

    def _let_in(self, hidden: Tensor, context: Tensor) -> Tensor:
        return context if self.gate is None else self.gate(hidden).sigmoid() * context  # β

    def _lstm(self, input_gates: Tensor, state: State) -> State:
        gates = input_gates + self.state_gates(state.hidden)
        sigmoids, candidate = gates.split((3 * state.hidden.shape[-1], state.hidden.shape[-1]), dim=-1)
        write, forget, read = sigmoids.sigmoid().chunk(3, dim=-1)
        cell = forget * state.cell + write * candidate.tanh()
        return State(read * cell.tanh(), cell)


def _running(lengths: Tensor) -> list[tuple[int, int]]:
    """For each step the corner block (pictures, captions) that holds every caption not yet ended.

    Captions end one by one; steps of those that ended would be thrown away. The block is right for any order and small
    when long pictures and long captions come first.
    """
    blocks = []
    for step in range(int(lengths.max())):
        running = (lengths > step).nonzero()  # (captions still running, 2)
        last_picture, last_caption = running.max(dim=0).values.tolist()
        blocks.append((last_picture + 1, last_caption + 1))
    return blocks
