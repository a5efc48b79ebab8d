import torch

from captioning.generation.candidates import select_candidates, split_groups
from captioning.preprocessing.vocabulary import Vocabulary

EOS = Vocabulary.EOS_ID


def test_split_groups_shares_the_first_beam() -> None:
    assert split_groups(torch.tensor([[7]]), 3).tolist() == [[[7], [7], [7]]]
    assert split_groups(torch.arange(6).view(1, 6), 3).tolist() == [[[0, 1], [2, 3], [4, 5]]]


def test_candidates_are_the_best_sums_and_ends_are_not_kept() -> None:
    scores = torch.tensor([[0.0, -1.0]])
    log_probs = torch.full((1, 2, 7), -torch.inf)
    log_probs[0, 0, [EOS, 4, 5]] = torch.tensor([-0.5, -2.0, -5.0])
    log_probs[0, 1, [5, 6]] = torch.tensor([-0.25, -3.0])
    candidates = select_candidates(scores, log_probs, num_groups=1, beams_per_group=2, diversity_penalty=0.0)
    assert candidates.scores.tolist() == [[[-0.5, -1.25, -2.0, -4.0]]]
    assert candidates.parent_beams.tolist() == [[[0, 1, 0, 1]]]
    assert candidates.token_ids.tolist() == [[[EOS, 5, 4, 6]]]
    assert candidates.kept.tolist() == [[[1, 2]]]


def test_the_diversity_penalty_affects_the_selection_but_not_the_scores() -> None:
    log_probs = torch.full((1, 1, 7), -torch.inf)
    log_probs[0, 0, [4, 5, 6]] = torch.tensor([-0.5, -0.75, -3.0])
    for penalty, second_token in ((0.0, 4), (1.0, 5)):
        candidates = select_candidates(torch.zeros(1, 1), log_probs, 2, 1, penalty)
        tokens = candidates.token_ids.flatten(1).gather(1, candidates.kept.flatten(1))
        assert tokens.tolist() == [[4, second_token]]
        assert candidates.kept[0, :, 0].tolist() == [0, 2], "indices into the candidates of all groups"
        expected = log_probs[0, 0, candidates.token_ids]
        assert torch.equal(candidates.scores, expected)


def test_parents_are_indices_into_the_beams_of_all_groups() -> None:
    log_probs = torch.zeros(1, 4, 7).log_softmax(-1)
    scores = torch.tensor([[0.0, -9.0, -9.0, 0.0]])
    candidates = select_candidates(scores, log_probs, num_groups=2, beams_per_group=2, diversity_penalty=0.0)
    assert candidates.parent_beams.tolist() == [[[0] * 4, [3] * 4]]
