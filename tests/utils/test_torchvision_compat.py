"""Import of torchvision, on stubs: one that works, one whose operators are missing, and one with another error."""

import subprocess
import sys
from pathlib import Path

import pytest

WORKING = "import torch\nvalue = object()\n"
# As the real one fails: on import, after some submodules are imported, unless its operators are declared.
MISSING_OPERATORS = """
import torch
from . import submodule
if not (hasattr(torch.ops.torchvision, "nms") and hasattr(torch.ops.torchvision, "qnms")):
    raise RuntimeError("operator torchvision::nms does not exist")
"""
OTHER_ERROR = "raise RuntimeError('other error')\n"


def run(directory: Path, torchvision: str, script: str) -> subprocess.CompletedProcess[str]:
    package = directory / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(torchvision)
    (package / "submodule.py").write_text("")
    script = f"import sys; sys.path.insert(0, {str(directory)!r})\n{script}"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_a_working_torchvision_is_not_changed(tmp_path: Path) -> None:
    script = """
import torchvision as before, torch
from captioning.utils import torchvision_compat
after = torchvision_compat.import_torchvision()
assert after is before and after.value is before.value
assert torchvision_compat._declarations == []
assert not hasattr(torch.ops.torchvision, "nms"), "an operator was declared"
"""
    result = run(tmp_path, WORKING, script)
    assert result.returncode == 0, result.stderr


def test_missing_operators_are_declared(tmp_path: Path) -> None:
    script = """
try:
    import torchvision
except RuntimeError:
    pass
else:
    raise AssertionError("the stub has all operators")
from captioning.utils.torchvision_compat import import_torchvision
import_torchvision()
import gc; gc.collect()
import torchvision, torch
assert torchvision.submodule and hasattr(torch.ops.torchvision, "nms")
"""
    result = run(tmp_path, MISSING_OPERATORS, script)
    assert result.returncode == 0, result.stderr


def test_other_errors_are_raised(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        OTHER_ERROR,
        "from captioning.utils.torchvision_compat import import_torchvision; import_torchvision()",
    )
    assert result.returncode == 1
    assert "other error" in result.stderr


@pytest.mark.parametrize("library", ["torchvision.models", "torchmetrics", "timm", "pytorch_lightning"])
def test_torchvision_and_libraries_that_depend_on_it_can_be_imported(library: str) -> None:
    script = (
        f"from captioning.utils.torchvision_compat import import_torchvision; import_torchvision(); import {library}"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


# As torchvision and timm do: a function is taken from the compiler, and another decorated by it.
COMPILED = """
from torch._dynamo.utils import is_compile_supported
from torch.compiler import disable

@disable
def double(value):
    "of a number"
    return 2 * value
"""


def test_the_compiler_is_imported_only_when_it_is_called(tmp_path: Path) -> None:
    script = """
from captioning.utils.torchvision_compat import defer_slow_imports, import_torchvision
with defer_slow_imports():
    torchvision = import_torchvision()
assert not [name for name in sys.modules if name.startswith("torch._dynamo")]
assert torchvision.double.__doc__ == "of a number"
assert torchvision.double(21) == 42
import torch._dynamo.utils
assert torchvision.is_compile_supported("cpu") == torch._dynamo.utils.is_compile_supported("cpu")
"""
    result = run(tmp_path, COMPILED, script)
    assert result.returncode == 0, result.stderr


def test_a_compiler_that_is_imported_is_not_replaced(tmp_path: Path) -> None:
    script = """
import torch._dynamo.utils
from captioning.utils.torchvision_compat import defer_slow_imports, import_torchvision
with defer_slow_imports():
    torchvision = import_torchvision()
assert torchvision.is_compile_supported is torch._dynamo.utils.is_compile_supported
"""
    result = run(tmp_path, COMPILED, script)
    assert result.returncode == 0, result.stderr


def test_lightning_is_imported_without_slow_modules() -> None:
    """Its instance checks of compiled modules still work, with the class of the compiler."""
    script = """
import sys
import captioning.training.cli
assert not {"torch._dynamo", "scipy.signal"} & set(sys.modules)
import scipy.signal
assert scipy.signal.windows.hamming(3).max() == 1
import torch
from pytorch_lightning.utilities.compile import OptimizedModule
module = torch.nn.Linear(2, 2)
assert not isinstance(module, OptimizedModule)
compiled = torch.compile(module)
assert "torch._dynamo" in sys.modules
assert isinstance(compiled, OptimizedModule)
assert not isinstance(module, OptimizedModule)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
