"""Import torchvision, also where its compiled operators do not load, and without waiting for what nobody asked for.

A CUDA build of torchvision on a CPU build of torch fails on import with "operator torchvision::nms does not exist",
and takes torchmetrics, pytorch_lightning and timm down with it. Its models and transforms need none of those
operators: it is enough that they are *declared*. Whoever needs torchvision, or a library that imports it, calls this
first.
"""

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

_SYMPTOM = "operator torchvision::nms does not exist"
_MISSING_OPERATORS = ("nms", "qnms")
_COMPILER = ("torch._dynamo", "torch._dynamo.utils")

# A torch.library.Library takes its declarations back when it is collected: it must live as long as torchvision does.
_declarations: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """Return torchvision; a healthy one is imported and left alone."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if _SYMPTOM not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in _MISSING_OPERATORS:
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declarations.append(library)
    return importlib.import_module("torchvision")


@contextlib.contextmanager
def compiler_later() -> Iterator[None]:
    """Within this, torchvision and timm are imported without torch's compiler; it is imported if it is ever called.

    They take a function each from it, of which captioning calls none, and its import lasts longer than a caption.
    """
    if _COMPILER[0] in sys.modules:
        yield
        return
    stand_ins = {name: _StandIn(name) for name in _COMPILER}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]


class _StandIn(ModuleType):
    """A module whose functions import the real one when they are called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # what makes a module a package

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def ask(*arguments: Any, **settings: Any) -> Any:
            if sys.modules.get(self.__name__) is not self:
                return getattr(importlib.import_module(self.__name__), name)(*arguments, **settings)
            function = arguments[0]  # something that is being imported is decorated

            @functools.wraps(function)
            def decorated(*given: Any, **named: Any) -> Any:
                return ask(*arguments, **settings)(*given, **named)

            return decorated

        return ask
