"""A small random decoder, beam search, and teacher forcing as the reference of generated log-probabilities."""

from typing import Any

import torch
import torch.nn.functional as F

from captioning.generation import GenerationConfig, Hypothesis
from captioning.generation.beam_search import beam_search
from captioning.models.decoder import Decoder
from captioning.preprocessing.vocabulary import Vocabulary


def make_decoder(seed: int = 0, eos_bias: float = 0.0, **settings: Any) -> Decoder:
    """A decoder with random weights: 12 tokens (8 words), 6 locations, feature size 8."""
    torch.manual_seed(seed)
    decoder = Decoder(12, 8, 6, embedding_size=6, hidden_size=8, attention_size=5, **settings).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(std=0.8)
        decoder.output.bias[Vocabulary.EOS_ID] += eos_bias
    return decoder


def teacher_force(decoder: Decoder, features: torch.Tensor, words: list[int]) -> tuple[list[float], torch.Tensor]:
    """Log-probabilities of the words and the end token (T+1), and attention weights of the words (T, L)."""
    token_ids = torch.tensor([[[Vocabulary.BOS_ID, *words, Vocabulary.EOS_ID]]])
    output = decoder(features, token_ids, torch.tensor([[len(words) + 1]]))
    log_probs = -F.cross_entropy(output.logits, output.targets, reduction="none")
    return log_probs.tolist(), output.attention_weights[0, 0, :-1].detach()


def run_beam_search(
    decoder: Decoder,
    features: torch.Tensor,
    num_beams: int,
    max_length: int = 40,
    length_penalty: float = 0.0,
    num_return_sequences: int = 1,
    **settings: Any,
) -> list[list[Hypothesis]]:
    config = GenerationConfig(max_length, num_beams=num_beams, length_penalty=length_penalty, **settings)
    return beam_search(config, decoder, features, num_return_sequences)


def teacher_forced_log_probs(decoder: Decoder, features: torch.Tensor, words: list[int]) -> list[float]:
    return teacher_force(decoder, features, words)[0]


def token_ids_of(results: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[hypothesis.token_ids for hypothesis in hypotheses] for hypotheses in results]
