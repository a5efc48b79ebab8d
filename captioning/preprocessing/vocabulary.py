"""Mapping between words and token ids."""

from collections import Counter
from collections.abc import Iterable, Sequence


class Vocabulary:
    """Mapping between tokens and ids. The first four ids are the special tokens.

    Args:
        tokens: all tokens in the order of their ids, starting with :attr:`SPECIAL_TOKENS`.
    """

    SPECIAL_TOKENS = ("<pad>", "<start>", "<end>", "<unk>")
    PAD_ID, BOS_ID, EOS_ID, UNK_ID = range(4)

    def __init__(self, tokens: Sequence[str]) -> None:
        if tuple(tokens[:4]) != self.SPECIAL_TOKENS:
            raise ValueError(f"tokens must start with {self.SPECIAL_TOKENS}, got {tuple(tokens[:4])}")
        self.tokens = list(tokens)
        self._ids = {token: token_id for token_id, token in enumerate(self.tokens)}

    @classmethod
    def build(cls, captions: Iterable[Sequence[str]], min_freq: int = 1, max_size: int | None = None) -> "Vocabulary":
        """Build a vocabulary from tokenized captions, ordered by descending frequency, then alphabetically.

        Args:
            captions: tokenized captions.
            min_freq: minimum number of occurrences of a word.
            max_size: maximum number of entries including the special tokens; the most frequent words are kept.
        """
        counts = Counter(word for caption in captions for word in caption)
        words = [word for word, count in counts.items() if count >= min_freq and word not in cls.SPECIAL_TOKENS]
        return cls([*cls.SPECIAL_TOKENS, *sorted(words, key=lambda word: (-counts[word], word))][:max_size])

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, words: Sequence[str]) -> list[int]:
        """Convert words to token ids, with ``BOS_ID`` before and ``EOS_ID`` after them."""
        return [self.BOS_ID, *(self._ids.get(word, self.UNK_ID) for word in words), self.EOS_ID]

    def decode(self, token_ids: Iterable[int]) -> list[str]:
        """Convert token ids up to the first ``EOS_ID`` to words, without ``BOS_ID`` and ``PAD_ID``."""
        words = []
        for token_id in token_ids:
            if token_id == self.EOS_ID:
                break
            if token_id not in (self.PAD_ID, self.BOS_ID):
                words.append(self.tokens[token_id])
        return words
