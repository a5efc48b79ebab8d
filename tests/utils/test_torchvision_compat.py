"""The cure, on stand-ins for torchvision: a healthy one, a sick one, and one with another complaint."""

import subprocess
import sys
from pathlib import Path

import pytest

HEALTHY = "import torch\nvalue = object()\n"
# As the real one fails: on import, after its submodules are half loaded, unless its operators are declared.
SICK = """
import torch
from . import half
if not (hasattr(torch.ops.torchvision, "nms") and hasattr(torch.ops.torchvision, "qnms")):
    raise RuntimeError("operator torchvision::nms does not exist")
"""
OTHER = "raise RuntimeError('out of paint')\n"


def run(folder: Path, torchvision: str, script: str) -> subprocess.CompletedProcess[str]:
    package = folder / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(torchvision)
    (package / "half.py").write_text("")
    script = f"import sys; sys.path.insert(0, {str(folder)!r})\n{script}"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_a_healthy_one_is_left_alone(tmp_path: Path) -> None:
    script = """
import torchvision as before, torch
from captioning.utils import torchvision_compat as torchvision_cure
after = torchvision_cure.import_torchvision()
assert after is before and after.value is before.value
assert torchvision_cure._declarations == []
assert not hasattr(torch.ops.torchvision, "nms"), "an operator was declared"
"""
    result = run(tmp_path, HEALTHY, script)
    assert result.returncode == 0, result.stderr


def test_a_sick_one_is_cured(tmp_path: Path) -> None:
    script = """
try:
    import torchvision
except RuntimeError:
    pass
else:
    raise AssertionError("the stand-in is not sick")
from captioning.utils.torchvision_compat import import_torchvision
import_torchvision()
import gc; gc.collect()
import torchvision, torch
assert torchvision.half and hasattr(torch.ops.torchvision, "nms")
"""
    result = run(tmp_path, SICK, script)
    assert result.returncode == 0, result.stderr


def test_another_complaint_is_passed_on(tmp_path: Path) -> None:
    result = run(
        tmp_path, OTHER, "from captioning.utils.torchvision_compat import import_torchvision; import_torchvision()"
    )
    assert result.returncode == 1
    assert "out of paint" in result.stderr


@pytest.mark.parametrize("library", ["torchvision.models", "torchmetrics", "timm", "pytorch_lightning"])
def test_the_real_one_and_its_dependants_import(library: str) -> None:
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
from captioning.utils.torchvision_compat import defer_dynamo_import, import_torchvision
with defer_dynamo_import():
    torchvision = import_torchvision()
assert not [name for name in sys.modules if name.startswith("torch._dynamo")]
assert torchvision.double.__doc__ == "of a number"
assert torchvision.double(21) == 42
import torch._dynamo.utils
assert torchvision.is_compile_supported("cpu") == torch._dynamo.utils.is_compile_supported("cpu")
"""
    result = run(tmp_path, COMPILED, script)
    assert result.returncode == 0, result.stderr


def test_a_compiler_that_is_there_stays(tmp_path: Path) -> None:
    script = """
import torch._dynamo.utils
from captioning.utils.torchvision_compat import defer_dynamo_import, import_torchvision
with defer_dynamo_import():
    torchvision = import_torchvision()
assert torchvision.is_compile_supported is torch._dynamo.utils.is_compile_supported
"""
    result = run(tmp_path, COMPILED, script)
    assert result.returncode == 0, result.stderr
