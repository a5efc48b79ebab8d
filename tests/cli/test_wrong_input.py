"""Wrong commands: each prints one line that names the mistake, exits with code 2, and leaves nothing behind."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from captioning.cli.main import main
from tests.cli.wrong_commands import CAPTION, FIT, TOOLS, make_workspace

# Missing files, and options that contradict each other, the model file or the command.
CHEAP = [
    *(
        row[0]
        for row in CAPTION
        if "model {photo}" not in row[0] and "argmax" not in row[0] and "-dir {photo}" not in row[0]
    ),
    *(row[0] for row in TOOLS if row[0].startswith("compress") and "{photo}" not in row[0]),
    *(row[0] for row in FIT if "{none}" in row[0] or "--threads" in row[0]),
]


@pytest.fixture(scope="module")
def workspace(drawn: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_workspace(tmp_path_factory.mktemp("wrong"), drawn)


def listing(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if "features" not in path.parts}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("command", "parts"), [(row[0], row[1:]) for row in (*CAPTION, *TOOLS, *FIT)])
def test_one_line_and_exit_code_2(
    workspace: dict[str, Path], capsys: pytest.CaptureFixture[str], command: str, parts: tuple[str, ...]
) -> None:
    before = listing(workspace["root"])
    with pytest.raises(SystemExit) as stop:
        main([word.format(**workspace) for word in command.split()])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    (line,) = [line for line in error.splitlines() if line.startswith("captioning: error: ")]
    for part in parts:
        assert part in line
    assert "Traceback" not in error
    if "wrong_monitor" not in command:  # validated with a model, so its run directory exists
        assert listing(workspace["root"]) == before


def test_the_matrix_is_large() -> None:
    assert len(CAPTION) + len(TOOLS) + len(FIT) >= 50


@pytest.mark.parametrize("command", CHEAP)
def test_cheap_checks_come_before_heavy_imports(workspace: dict[str, Path], command: str) -> None:
    """Without torch, a command fails in a fraction of a second; the bound on CPU time allows for a busy machine."""
    arguments = [word.format(**workspace) for word in command.split()]
    script = (
        f"import sys\nfrom captioning.cli.main import main\ntry: main({arguments!r})\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    assert result.stderr.splitlines()[-1] == "False", "imports torch"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - start < 1
