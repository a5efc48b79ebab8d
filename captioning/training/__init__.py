"""All code that depends on PyTorch Lightning: module, data module, callbacks and the training commands."""

from captioning.utils.torchvision_compat import import_torchvision

import_torchvision()  # pytorch_lightning imports torchmetrics, which imports torchvision
