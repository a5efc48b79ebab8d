"""Tokenizer of captions, equivalent to the one of COCO caption evaluation."""

import functools
from typing import Any

# Tokens that COCO caption evaluation removes (PTBTokenizer.PUNCTUATIONS).
_PUNCTUATION = frozenset("'' ' `` ` -LRB- -RRB- -LCB- -RCB- . ? ! , : - -- ... ;".split())


@functools.cache
def _treebank_tokenizer() -> Any:
    # Importing NLTK takes half a second, and inference needs no tokenizer.
    from nltk.tokenize.treebank import TreebankWordTokenizer

    return TreebankWordTokenizer()


def tokenize(caption: str) -> list[str]:
    """Split a caption into lower-case Penn Treebank tokens without punctuation ("A man's dog." → a man 's dog)."""
    return list(_tokenize_cached(caption))


# Each caption is tokenized for the vocabulary, for training and at every validation; a call costs 0.1 ms.
@functools.lru_cache(maxsize=1_000_000)
def _tokenize_cached(caption: str) -> tuple[str, ...]:
    tokens = _treebank_tokenizer().tokenize(caption.strip(), convert_parentheses=True)
    return tuple(token.lower() for token in tokens if token not in _PUNCTUATION)
