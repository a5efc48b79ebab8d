import os
import sys

import pytest

from captioning.utils import threads
from captioning.utils.errors import CaptioningError
from captioning.utils.threads import configure_threads, default_num_threads


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Torch is not imported yet; changes of the environment are undone."""
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "torch")
    return monkeypatch


@pytest.mark.parametrize(
    ("cores", "quota", "cpus", "running", "expected"),
    [
        (4, sys.maxsize, 8, 0, 4),  # an idle machine with two CPUs per core
        (4, 2, 8, 0, 2),  # a container that may use two CPUs
        (2, sys.maxsize, 2, 1, 1),  # another process computes
        (2, sys.maxsize, 2, 9, 1),
        (2, 2, 64, 30, 2),  # other containers of the machine compute, but cores are left
    ],
)
def test_the_default_is_the_number_of_idle_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, quota: int, cpus: int, running: int, expected: int
) -> None:
    monkeypatch.setattr(threads, "_num_cores", lambda: cores)
    monkeypatch.setattr(threads, "_cpu_quota", lambda: quota)
    monkeypatch.setattr(threads, "_num_running_processes", lambda: running)
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    assert default_num_threads() == expected


def test_this_machine() -> None:
    assert 1 <= default_num_threads() <= (os.cpu_count() or 1)


def test_the_environment_is_set_before_torch_is_imported(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(threads, "default_num_threads", lambda: 3)
    configure_threads()
    assert (os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]) == ("3", "PASSIVE")
    environment.setattr(threads, "default_num_threads", lambda: 4)
    configure_threads()
    assert os.environ["OMP_NUM_THREADS"] == "3", "the user's choice is kept"
    configure_threads(2)
    assert os.environ["OMP_NUM_THREADS"] == "2"
    with pytest.raises(CaptioningError, match="--threads must be >= 1, got 0"):
        configure_threads(0)
