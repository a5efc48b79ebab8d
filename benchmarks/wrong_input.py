"""Exit code, number of error lines and wall time of wrong commands, each in a new process.

The commands are those of ``tests/cli/wrong_commands.py``. A row in the table ends in ``!`` if the command printed a
traceback, did not exit with code 2, or did not print exactly one error line.
"""

import argparse
import contextlib
import io
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from captioning.datasets.synthetic import shapes
from tests.cli import wrong_commands

GROUPS = {"caption": wrong_commands.CAPTION, "tools": wrong_commands.TOOLS, "fit": wrong_commands.FIT}
PREFIX = "captioning: error: "


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wrong_input", description=__doc__.splitlines()[0])
    parser.add_argument("--groups", nargs="+", default=list(GROUPS), choices=GROUPS, help="default: all")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run every N-th command only (default 1)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        files = make_files(Path(temporary))
        for group in options.groups:
            seconds = [measure(row[0], files) for row in GROUPS[group][:: options.every]]
            median, maximum = statistics.median(seconds), max(seconds)
            print(f"{group}: {len(seconds)} commands, median {median:.2f} s, maximum {maximum:.2f} s")


def make_files(directory: Path) -> dict[str, Path]:
    drawn, root = directory / "shapes", directory / "wrong"
    shapes.generate_dataset(drawn, num_images=60, seed=3)
    root.mkdir()
    with contextlib.redirect_stdout(io.StringIO()):
        return wrong_commands.make_workspace(root, drawn)


def measure(command: str, files: dict[str, Path]) -> float:
    """Run a command, print its row, and return its wall time in seconds."""
    arguments = [word.format(**files) for word in command.split()]
    start = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-m", "captioning", *arguments], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    num_lines = sum(line.startswith(PREFIX) for line in result.stderr.splitlines())
    is_wrong = result.returncode != 2 or num_lines != 1 or "Traceback" in result.stderr
    print(f"{result.returncode}  {num_lines}  {seconds:5.2f} s  {command}{'  !' if is_wrong else ''}", flush=True)
    return seconds


if __name__ == "__main__":
    main()
