"""Number of CPU threads of torch. It is set before torch is imported, since its OpenMP library reads it only once.

A thread that has finished its part waits for the others. If other processes use the same cores, that takes long, and
more threads make a command slower. So the default counts only idle cores, and waiting threads sleep, not spin.
"""

import os
import sys
import time
from pathlib import Path

from captioning.utils.errors import CaptioningError

NUM_THREADS_VARIABLE = "OMP_NUM_THREADS"
THREADS_HELP = "CPU threads (default: OMP_NUM_THREADS, otherwise the number of idle physical cores)"
_NUM_SAMPLES = 3
_SAMPLE_INTERVAL = 0.02  # seconds


def configure_threads(num_threads: int | None = None) -> None:
    """Set the number of threads; None keeps ``OMP_NUM_THREADS`` if it is set, and otherwise counts the idle cores."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if num_threads is None:
        if NUM_THREADS_VARIABLE not in os.environ and "torch" not in sys.modules:
            os.environ[NUM_THREADS_VARIABLE] = str(default_num_threads())
        return
    if num_threads < 1:
        raise CaptioningError(f"--threads must be >= 1, got {num_threads}")
    os.environ[NUM_THREADS_VARIABLE] = str(num_threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(num_threads)


def current_num_threads() -> int:
    """The number of threads that torch uses, or would use after its import."""
    if "torch" in sys.modules:
        return sys.modules["torch"].get_num_threads()
    number = os.environ.get(NUM_THREADS_VARIABLE, "").partition(",")[0]  # OpenMP allows a list, for nested regions
    return int(number) if number.isdigit() and int(number) else default_num_threads()


def default_num_threads() -> int:
    """The number of physical cores that this process may use and that are idle now; at least 1."""
    num_idle = (os.cpu_count() or 1) - _num_running_processes()
    return max(1, min(_num_cores(), _cpu_quota(), num_idle))


def _num_cores() -> int:
    """Physical cores of the CPUs that this process may run on."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = (Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus)
    return len({path.read_text() if path.is_file() else str(path) for path in siblings})


def _cpu_quota() -> int:
    """CPUs that the control group of a container allows, rounded up."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return sys.maxsize
    return sys.maxsize if quota == "max" else -(-int(quota) // int(period))


def _num_running_processes() -> int:
    """Processes of the machine that are computing, without this one: the minimum of a few samples."""
    samples = []
    for number in range(_NUM_SAMPLES):
        if number:
            time.sleep(_SAMPLE_INTERVAL)
        try:
            running = Path("/proc/loadavg").read_text().split()[3].partition("/")[0]
        except OSError:  # not Linux
            return 0
        samples.append(int(running) - 1)
    return max(0, min(samples))
