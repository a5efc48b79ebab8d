"""Every operation returns the same for NumPy arrays and torch tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from captioning.utils import array_ops as ops

VALUES = np.random.default_rng(0).permutation(60).reshape(3, 4, 5).astype(np.float32)
IDS = np.random.default_rng(1).integers(0, 5, (3, 4, 2))


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, ids: ops.full((2, 3), -np.inf, x),
        lambda x, ids: ops.full_ids((2, 3), 7, x),
        lambda x, ids: ops.ids(range(4), x),
        lambda x, ids: ops.concat((x, x + 1), -1),
        lambda x, ids: ops.stack((x, x + 1), 1),
        lambda x, ids: ops.expand(x[:, :1], (3, 6, 5)),
        lambda x, ids: ops.maximum(x, 1),
        lambda x, ids: ops.maximum(x, -1),
        lambda x, ids: ops.where(x > 20, x, -x),
        lambda x, ids: ops.masked_fill(x, x > 20, -np.inf),
        lambda x, ids: ops.masked_fill(ids, ids > 2, 0),
        lambda x, ids: ops.gather(x, -1, ids),
        lambda x, ids: ops.scatter_last(x, ids, -np.inf),
        lambda x, ids: ops.count_last(ids, 5),
        lambda x, ids: ops.topk_last(x, 3)[0],
        lambda x, ids: ops.topk_last(x, 3)[1],
        lambda x, ids: ops.topk_last(x, 5)[1],
        lambda x, ids: ops.windows_last(ids, 2),
        lambda x, ids: ops.to_host(x),
    ],
)
def test_both_libraries_agree(operation: Callable[[Any, Any], Any]) -> None:
    array = operation(VALUES, IDS)
    tensor = operation(torch.from_numpy(VALUES), torch.from_numpy(IDS))
    assert isinstance(array, np.ndarray)
    assert ops.is_tensor(tensor)
    assert not ops.is_tensor(array)
    assert tensor.numpy().dtype == array.dtype
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_operations_do_not_change_their_arguments() -> None:
    values, ids = VALUES.copy(), IDS.copy()
    ops.scatter_last(values, ids, -np.inf)
    ops.masked_fill(values, values > 20, -np.inf)
    np.testing.assert_array_equal(values, VALUES)
