"""Function words, which carry little content: overlays emphasize the other words."""

# English articles, prepositions, conjunctions, pronouns, auxiliary verbs and adverbs that are frequent in captions.
FUNCTION_WORDS = frozenset(
    "a about above across after against along among an and another are around as at away be behind being below beside "
    "between both but by down each for from front has have he her herself him himself his in inside into is it its "
    "itself near next of off on onto or other out outside over past several she some something that the their them "
    "there these they this through to together top toward towards under up upon very was were while who "
    "with".split()
)


def is_content_word(word: str) -> bool:
    return word.casefold() not in FUNCTION_WORDS


def sentence_case(words: list[str]) -> list[str]:
    """Capitalize the first word."""
    return [words[0][:1].upper() + words[0][1:], *words[1:]] if words else []
