import itertools

import pytest
import torch

from captioning.training.schedules import WarmupCosine


def test_up_then_down_over_the_whole_run() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = WarmupCosine(optimizer, warmup=0.1, floor=0.1)
    schedule.plan(100)
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == pytest.approx(2.0) == rates[9]
    assert rates[-1] == pytest.approx(0.2)
    assert all(one >= other for one, other in itertools.pairwise(rates[9:]))


def test_a_longer_run_keeps_its_own_plan_when_resumed() -> None:
    def make(steps: int) -> WarmupCosine:
        schedule = WarmupCosine(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0))
        schedule.plan(steps)
        return schedule

    longer = make(200)
    longer.load_state_dict(make(100).state_dict())
    assert longer.total_steps == 200
