"""All code that depends on PyTorch Lightning: module, data module, callbacks and the training commands."""

import importlib

from captioning.utils.torchvision_compat import defer_slow_imports, import_torchvision

with defer_slow_imports():
    import_torchvision()  # torchmetrics imports it
    importlib.import_module("pytorch_lightning")  # imports torchmetrics
