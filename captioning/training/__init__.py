"""All code that depends on PyTorch Lightning: module, data module, callbacks and the training commands."""

import importlib

from captioning.utils.torchvision_compat import defer_dynamo_import, import_torchvision

with defer_dynamo_import():
    import_torchvision()  # torchmetrics imports it
    importlib.import_module("pytorch_lightning")  # imports torchmetrics
