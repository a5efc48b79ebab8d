"""Measurements of a training step that cost extra passes and are therefore taken on logged steps only."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from captioning.datasets.batch import Batch
from captioning.models.attention import attend_argmax
from captioning.models.decoder import Decoder
from captioning.utils.modules import eval_mode

_NUM_PROBE_IMAGES = 8


def gradient_norm(loss: Tensor, modules: Iterable[nn.Module]) -> Tensor:
    """L2 norm of the gradient of a loss with respect to all trained parameters; 0 for a constant loss.

    Runs a backward pass of its own and keeps the graph.
    """
    if not loss.requires_grad:
        return torch.zeros(())
    parameters = [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not None])


class ArgmaxProbe:
    """Fraction of words whose most attended location changes during the training.

    The words are the reference captions of a few images, under teacher forcing with argmax attention, as at inference.
    Images and captions are the same at every measurement, so that only the change of the weights is measured: the
    fraction falls to 0 when the attention maps settle. The state is not part of checkpoints; a resumed run starts with
    a new probe.

    Args:
        decoder: decoder with hard attention, before its first update.
        features: (B, L, D), encoder output of a batch. It is not recomputed when the encoder is trained.
        batch: the batch.
    """

    def __init__(self, decoder: Decoder, features: Tensor, batch: Batch) -> None:
        self.features = features[:_NUM_PROBE_IMAGES].detach().clone()
        self.token_ids = batch.token_ids[:_NUM_PROBE_IMAGES]
        self.lengths = batch.lengths[:_NUM_PROBE_IMAGES]
        self.locations = self._argmax_locations(decoder)

    def update(self, decoder: Decoder) -> Tensor:
        """Fraction of words whose location changed since the last measurement, or since the construction."""
        previous, self.locations = self.locations, self._argmax_locations(decoder)
        return (self.locations != previous).float().mean()

    @torch.no_grad()
    def _argmax_locations(self, decoder: Decoder) -> Tensor:
        """Attended location (N,) of each word."""
        with eval_mode(decoder):
            output = decoder(self.features, self.token_ids, self.lengths, attend_argmax)
        assert output.attention_trace is not None
        return output.attention_trace.locations
