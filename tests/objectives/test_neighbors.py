"""Pictures that look alike, and their say in what a caption earns."""

from pathlib import Path

import numpy as np
import pytest
import torch
from captioning.generation.search import Hypothesis

from captioning.datasets.record import Record
from captioning.objectives import neighbors as look_alikes
from captioning.objectives.neighbors import nearest_neighbors
from captioning.objectives.self_critical import CiderReward
from captioning.training.feature_cache import Features
from captioning.utils.errors import CaptioningError
from tests.training.conftest import Fit
from tests.training.test_command import check_error
from tests.training.test_critic import RECORDS, WORDS, found
from tests.training.test_module import make


def cache(folder: Path, means: torch.Tensor) -> Features:
    """Of two copies of each picture, four places each, whose mean is the given one in the first copy."""
    spread = torch.randn(len(means), 4, means.shape[1])
    first = means[:, None] + spread - spread.mean(dim=1, keepdim=True)
    np.save(folder / "annotations.npy", torch.stack([first, torch.randn_like(first)]).half().numpy())
    return Features(folder, mirror=True)


def test_the_most_alike_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By direction from the mean of all, in copies as they are, and never the picture itself."""
    monkeypatch.setattr(look_alikes, "_AT_ONCE", 2)
    torch.manual_seed(0)
    around = torch.tensor([[4.0, 0.0], [1.0, 0.3], [-3.0, -1.0], [-5.0, 3.0], [3.0, -2.3]])  # at 0, 17, 198, 149, 323°
    # Two pictures of another split come before them.
    features = cache(tmp_path, torch.cat([torch.zeros(2, 2), 100 + 4 * around]))
    assert nearest_neighbors(features, range(2, 7), 2) == [[1, 4], [0, 4], [3, 4], [2, 1], [0, 1]]
    with pytest.raises(CaptioningError, match="look_alikes 5: must be less than the 5 training pictures"):
        nearest_neighbors(features, range(2, 7), 5)


def test_a_caption_earns_a_share_of_what_it_would_earn_of_look_alikes() -> None:
    alone = CiderReward(RECORDS, WORDS)
    critic = CiderReward(RECORDS, WORDS, look_alikes=[[2, 1], [0, 2], [0, 1]], look_alike_share=0.25)
    caption = found("a big dog sits")
    own, second, third = (alone(record, caption) for record in RECORDS)
    assert len({own, second, third}) == 3
    assert critic(RECORDS[0], caption) == pytest.approx(0.75 * own + 0.25 * (second + third) / 2)
    assert critic(RECORDS[1], caption) == pytest.approx(0.75 * second + 0.25 * (own + third) / 2)


def test_a_run_asks_look_alikes(
    fit: Fit, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the training split, by what the cache has of them."""
    start = fit("--trainer.max_epochs", "1", version="first") / "checkpoints" / "last.ckpt"
    critics: list[CiderReward] = []
    judge = CiderReward.__call__

    def remember_and_judge(self: CiderReward, record: Record, caption: Hypothesis) -> float:
        critics.append(self)
        return judge(self, record, caption)

    monkeypatch.setattr(CiderReward, "__call__", remember_and_judge)
    critical = ("--model.objective", "self_critical", "--model.begin_with", str(start), "--trainer.max_epochs", "1")
    alike = ("--model.look_alikes", "3", "--model.look_alike_share", "0.4")
    fit(*critical, *alike, "--model.train_encoder", "false", version="second")
    assert critics[0].look_alike_share == 0.4
    (cached,) = (tmp_path / "features").glob("*/annotations.npy")
    order = (cached.parent / "pictures.txt").read_text().splitlines()
    rows = [order.index(str(image)) for image in critics[0].numbers]
    assert rows != list(range(len(rows))), "other splits lie between"
    means = np.load(cached)[0, rows].astype(np.float64).mean(axis=1)
    directions = means - means.mean(axis=0)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    likeness = directions @ directions.T - 3 * np.eye(len(rows))
    assert critics[0].look_alikes == likeness.argsort(axis=1)[:, :-4:-1].tolist()
    check_error(capsys, ["fit", "--config", str(config), *critical, *alike], "look_alikes needs the feature cache")


def test_what_they_cannot_be(drawn: Path) -> None:
    with pytest.raises(CaptioningError, match="look_alikes -1: must not be negative"):
        make(drawn, objective="self_critical", look_alikes=-1)
    with pytest.raises(CaptioningError, match=r"look_alike_share 1.5: more than 0, up to 1"):
        make(drawn, objective="self_critical", look_alike_share=1.5)
    with pytest.raises(CaptioningError, match=r"look_alike_share 0.0: .* for none set look_alikes 0"):
        make(drawn, objective="self_critical", look_alikes=3, look_alike_share=0.0)
