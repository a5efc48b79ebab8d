import pytest

from captioning.preprocessing.tokenizer import tokenize
from captioning.preprocessing.vocabulary import Vocabulary


@pytest.mark.parametrize(
    ("sentence", "tokens"),
    [
        ("A man's dog, in the snow.", "a man 's dog in the snow"),
        ("  Two men (one old) don't run !  ", "two men one old do n't run"),
        ('A "big" red-brown dog; it is wet...', "a big red-brown dog it is wet"),
        ("", ""),
    ],
)
def test_tokenise(sentence: str, tokens: str) -> None:
    assert tokenize(sentence) == tokens.split()


def test_vocabulary_keeps_frequent_words_in_a_fixed_order() -> None:
    captions = [["b", "a", "c"], ["c", "b"], ["c", "<unk>"]]
    assert Vocabulary.build(captions, min_freq=2).tokens == [*Vocabulary.SPECIAL_TOKENS, "c", "b"]
    assert Vocabulary.build(captions).tokens == [*Vocabulary.SPECIAL_TOKENS, "c", "b", "a"]


def test_of_too_many_words_the_rarest_are_left_out() -> None:
    captions = [["b", "a", "b"], ["c", "b", "c"]]
    assert Vocabulary.build(captions, max_size=6).tokens[4:] == ["b", "c"]
    assert Vocabulary.build(captions, max_size=9).tokens[4:] == ["b", "c", "a"]


def test_there_and_back() -> None:
    vocabulary = Vocabulary.build([["a", "dog"]])
    ids = vocabulary.encode(["a", "dog", "zebra"])
    assert ids[0] == Vocabulary.BOS_ID
    assert ids[-1] == Vocabulary.EOS_ID
    assert vocabulary.decode([*ids, Vocabulary.PAD_ID, vocabulary.encode(["a"])[1]]) == ["a", "dog", "<unk>"]


def test_a_list_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="must start with"):
        Vocabulary(["a", "dog"])
