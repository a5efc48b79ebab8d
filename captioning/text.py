"""Words: from a sentence to ids and back."""

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

# What COCO's caption evaluation drops after tokenising: a caption is its words.
_PUNCTUATION = frozenset("'' ' `` ` -LRB- -RRB- -LCB- -RCB- . ? ! , : - -- ... ;".split())


@functools.cache
def _treebank() -> Any:
    # NLTK takes half a second to import, and captioning a photo needs no tokeniser.
    from nltk.tokenize.treebank import TreebankWordTokenizer

    return TreebankWordTokenizer()


def tokenise(sentence: str) -> list[str]:
    """Lower-case words without punctuation, as COCO's evaluation has them ("A man's dog." → a man 's dog)."""
    return list(_tokens(sentence))


# A caption is needed for the vocabulary, for training and at each validation; to tokenise it costs 0.1 ms each time.
@functools.lru_cache(maxsize=1_000_000)
def _tokens(sentence: str) -> tuple[str, ...]:
    tokens = _treebank().tokenize(sentence.strip(), convert_parentheses=True)
    return tuple(token.lower() for token in tokens if token not in _PUNCTUATION)


class Vocabulary:
    """The words a model can say, each with its id; the first four are marks, not words.

    Args:
        words: every entry in the order of its id, the four marks included, as :attr:`words` gives them back.
    """

    MARKS = ("<pad>", "<start>", "<end>", "<unk>")
    PAD, START, END, UNKNOWN = range(4)

    def __init__(self, words: Sequence[str]) -> None:
        if tuple(words[:4]) != self.MARKS:
            raise ValueError(f"a vocabulary begins with {self.MARKS}, not {tuple(words[:4])}")
        self.words = list(words)
        self._ids = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def build(
        cls, captions: Iterable[Sequence[str]], minimum_count: int = 1, maximum_size: int | None = None
    ) -> "Vocabulary":
        """The words seen at least ``minimum_count`` times, most frequent first, ties in alphabetical order.

        Of more than ``maximum_size`` of them, marks included, the rarest are left out.
        """
        counts = Counter(word for caption in captions for word in caption)
        kept = [word for word, count in counts.items() if count >= minimum_count and word not in cls.MARKS]
        return cls([*cls.MARKS, *sorted(kept, key=lambda word: (-counts[word], word))][:maximum_size])

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, tokens: Sequence[str]) -> list[int]:
        """Ids of a caption between its start and end marks."""
        return [self.START, *(self._ids.get(token, self.UNKNOWN) for token in tokens), self.END]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Words up to the end mark; start and padding are passed over."""
        words = []
        for number in ids:
            if number == self.END:
                break
            if number not in (self.PAD, self.START):
                words.append(self.words[number])
        return words
