"""Import of torchvision where its compiled operators are missing, and without slow imports that are not used.

A CUDA build of torchvision on a CPU build of torch fails on import with "operator torchvision::nms does not exist", as
do torchmetrics, pytorch_lightning and timm, which import it. Models and transforms of torchvision do not use these
operators; declaring them is sufficient. Call :func:`import_torchvision` before importing torchvision or a library
that imports it.
"""

import contextlib
import functools
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

_NMS_ERROR = "operator torchvision::nms does not exist"
_MISSING_OPERATORS = ("nms", "qnms")
_DEFERRED_MODULES = ("torch._dynamo", "torch._dynamo.utils", "scipy.signal")

# A torch.library.Library removes its declarations when it is garbage-collected, so a reference must be kept.
_declarations: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """Return torchvision. Missing operators are declared only if the plain import fails."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if _NMS_ERROR not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in _MISSING_OPERATORS:
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declarations.append(library)
    return importlib.import_module("torchvision")


@contextlib.contextmanager
def defer_slow_imports() -> Iterator[None]:
    """Import torchvision, timm or Lightning without ``torch._dynamo`` and ``scipy.signal``.

    These libraries (torchmetrics, which Lightning imports, in the case of SciPy) import functions and classes that
    captioning never uses. Calling one of them imports its module. Importing the modules takes longer than captioning
    an image, and two fifths of the time that a wrong training command takes.
    """
    lazy_modules = {name: _LazyModule(name) for name in _DEFERRED_MODULES if name not in sys.modules}
    sys.modules.update(lazy_modules)
    try:
        yield
    finally:
        for name, module in lazy_modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


class _LazyClass(type):
    """Placeholder of a class for instance checks. Nothing is an instance before the real module is imported."""

    def __instancecheck__(cls, instance: object) -> bool:
        real = vars(sys.modules.get(cls.__module__, object)).get(cls.__name__)
        return isinstance(real, type) and real is not cls and isinstance(instance, real)


class _LazyModule(ModuleType):
    """Placeholder whose functions import the real module when they are called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # marks the module as a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            return _LazyClass(name, (), {"__module__": self.__name__})

        def call(*args: Any, **kwargs: Any) -> Any:
            if sys.modules.get(self.__name__) is not self:
                return getattr(importlib.import_module(self.__name__), name)(*args, **kwargs)
            function = args[0]  # still importing: the call is a decorator, which is applied on the first use

            @functools.wraps(function)
            def decorated(*inner_args: Any, **inner_kwargs: Any) -> Any:
                return call(*args, **kwargs)(*inner_args, **inner_kwargs)

            return decorated

        return call
