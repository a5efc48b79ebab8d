"""Everything of Lightning: the module, the data, the callbacks and the command that joins them."""

from captioning.utils.torchvision_compat import import_torchvision

import_torchvision()  # pytorch_lightning imports torchmetrics, which imports torchvision
