"""The documentation agrees with the code."""

import importlib.util
import re
from types import ModuleType

import pytest

from captioning.cli.main import _COMMANDS, _TRAINING_COMMANDS
from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_settings", REPOSITORY / "docs" / "generate_settings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_settings_page_is_current(generator: ModuleType) -> None:
    assert generator.PAGE.read_text() == generator.render(), "run: make docs"


def test_every_setting_is_described(generator: ModuleType) -> None:
    rows = [line for line in generator.render().splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [row for row in rows if row.endswith("|  |")] == []


def test_the_paths_of_the_architecture_page_exist() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", text)
    assert len(paths) > 15
    assert [path for path in paths if not (REPOSITORY / "captioning" / path).exists()] == []


def test_the_layers_of_the_architecture_page_are_those_that_are_enforced() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    named = set(re.findall(r'\b(\w+)\["', text.partition("## Data flow")[0]))
    contract = (REPOSITORY / "pyproject.toml").read_text().partition("layers = [")[2].partition("]")[0]
    enforced = set(re.findall(r"captioning\.(\w+)", contract))
    assert named == enforced
    package = REPOSITORY / "captioning"
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    assert modules | {path.parent.name for path in package.glob("*/__init__.py")} == enforced


def test_every_command_is_documented() -> None:
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    text = "\n".join(path.read_text() for path in pages)
    assert [name for name in (*_COMMANDS, *_TRAINING_COMMANDS) if f"captioning {name}" not in text] == []


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+\.md)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
