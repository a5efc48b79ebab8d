import itertools

import pytest
import torch

from captioning.training.lr_scheduler import WarmupCosineLR


def test_warmup_and_decay_over_the_whole_run() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = WarmupCosineLR(optimizer, warmup_fraction=0.1, min_lr_ratio=0.1)
    scheduler.set_total_steps(100)
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == pytest.approx(2.0) == rates[9]
    assert rates[-1] == pytest.approx(0.2)
    assert all(one >= other for one, other in itertools.pairwise(rates[9:]))


def test_a_resumed_longer_run_has_its_own_total_steps() -> None:
    def make(steps: int) -> WarmupCosineLR:
        scheduler = WarmupCosineLR(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0))
        scheduler.set_total_steps(steps)
        return scheduler

    longer = make(200)
    longer.load_state_dict(make(100).state_dict())
    assert longer.total_steps == 200
