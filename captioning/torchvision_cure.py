"""Import torchvision, also where its compiled operators do not load.

A CUDA build of torchvision on a CPU build of torch fails on import with "operator torchvision::nms does not exist",
and takes torchmetrics, pytorch_lightning and timm down with it. Its models and transforms need none of those
operators: it is enough that they are *declared*. Whoever needs torchvision, or a library that imports it, calls this
first.
"""

import importlib
import sys
from types import ModuleType

import torch

_SYMPTOM = "operator torchvision::nms does not exist"
_MISSING_OPERATORS = ("nms", "qnms")

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
