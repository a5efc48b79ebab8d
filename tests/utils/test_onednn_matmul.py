"""Matrix products in oneDNN equal those of PyTorch's own kernels. A process of its own, since kernels are global."""

import subprocess
import sys

import pytest
import torch

SCRIPT = """
import torch
from captioning.utils import onednn_matmul

torch.manual_seed(0)
layer = torch.nn.Linear(256, 300)
inputs = {
    "large": torch.randn(64, 256, requires_grad=True),
    "three dimensions": torch.randn(8, 10, 256, requires_grad=True),
    "small": torch.randn(2, 256, requires_grad=True),
    "empty": torch.randn(0, 256, requires_grad=True),
    "not contiguous": torch.randn(256, 70).T.requires_grad_(),
}
factors = torch.randn(300, 128) / 16


def results():
    for x in inputs.values():
        x.grad = None
        layer.zero_grad()
        y = layer(x).flatten(0, -2)
        product = y @ factors
        scaled = torch.addmm(product, y, factors, beta=0.5, alpha=2)
        (product.square().mean() + scaled.square().mean()).backward()
        yield [z.detach().clone() for z in (y, product, scaled, x.grad, layer.weight.grad, layer.bias.grad)]
    yield [torch.mm(layer.weight.double(), torch.ones(256, 300, dtype=torch.float64))]


expected = list(results())
calls = []
linear = onednn_matmul._linear
onednn_matmul._linear = lambda *arguments: (calls.append(1), linear(*arguments))[1]
onednn_matmul._register_kernels()
for own, reference in zip(results(), expected, strict=True):
    for x, y in zip(own, reference, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
print(len(calls))
"""


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN")
def test_products_and_gradients_equal_those_of_torch() -> None:
    process = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) >= 10
