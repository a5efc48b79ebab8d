"""Array operations of beam search, for NumPy arrays and for torch tensors.

Decoders in PyTorch return tensors, decoders in ONNX Runtime return NumPy arrays. With these functions one search serves
both, and captioning with ONNX Runtime does not import torch. Results have the type and the device of the first array.
Operators, indexing, ``reshape`` and ``tolist`` are the same in both libraries and are used directly.
"""

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs

Array = Any  # np.ndarray or torch.Tensor, which have no common type


def is_tensor(value: object) -> "TypeIs[torch.Tensor]":
    """Whether a value is a torch tensor. Does not import torch: without the import there are no tensors."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def no_grad() -> contextlib.AbstractContextManager[Any]:
    """``torch.no_grad()`` if torch is imported."""
    torch = sys.modules.get("torch")
    return contextlib.nullcontext() if torch is None else torch.no_grad()


def _namespace(array: Array) -> Any:
    """The module with the functions for this array: numpy or torch."""
    return np if isinstance(array, np.ndarray) else sys.modules["torch"]


def full(shape: Sequence[int], value: float, like: Array) -> Array:
    """An array of the given shape with the data type of ``like``."""
    if isinstance(like, np.ndarray):
        return np.full(shape, value, like.dtype)
    return like.new_full(tuple(shape), value)


def full_ids(shape: Sequence[int], value: int, like: Array) -> Array:
    """An int64 array of the given shape, on the device of ``like``."""
    if isinstance(like, np.ndarray):
        return np.full(shape, value, np.int64)
    torch = _namespace(like)
    return torch.full(tuple(shape), value, dtype=torch.int64, device=like.device)


def ids(values: Sequence[int] | range, like: Array) -> Array:
    """An int64 array of the given values, on the device of ``like``."""
    if isinstance(like, np.ndarray):
        return np.array(values, np.int64)
    torch = _namespace(like)
    return torch.tensor(list(values), dtype=torch.int64, device=like.device)


def concat(arrays: Sequence[Array], axis: int) -> Array:
    return _namespace(arrays[0]).concatenate(arrays, axis)


def stack(arrays: Sequence[Array], axis: int = 0) -> Array:
    return _namespace(arrays[0]).stack(arrays, axis)


def expand(array: Array, shape: Sequence[int]) -> Array:
    """A view of the array that is broadcast to the shape."""
    return _namespace(array).broadcast_to(array, tuple(shape))


def maximum(array: Array, axis: int) -> Array:
    return array.max(axis) if isinstance(array, np.ndarray) else array.amax(axis)


def where(condition: Array, array: Array, other: Array) -> Array:
    return _namespace(array).where(condition, array, other)


def masked_fill(array: Array, mask: Array, value: float) -> Array:
    """A copy of the array with ``value`` where the mask, which is broadcast, is true."""
    if isinstance(array, np.ndarray):
        return np.where(mask, array.dtype.type(value), array)
    return array.masked_fill(mask, value)


def gather(array: Array, axis: int, index: Array) -> Array:
    """The elements at the indices along an axis. All other axes of the index have the size of the array's."""
    if isinstance(array, np.ndarray):
        return np.take_along_axis(array, index, axis)
    return array.gather(axis, index)


def scatter_last(array: Array, index: Array, value: float) -> Array:
    """A copy of the array with ``value`` at the indices along the last axis."""
    if isinstance(array, np.ndarray):
        copy = array.copy()
        np.put_along_axis(copy, index, array.dtype.type(value), -1)
        return copy
    return array.scatter(-1, index, value)


def count_last(index: Array, size: int) -> Array:
    """Number of occurrences of each of ``size`` indices along the last axis, as float32."""
    if isinstance(index, np.ndarray):
        counts = np.zeros((*index.shape[:-1], size), np.float32)
        rows = np.arange(index.size // index.shape[-1]).repeat(index.shape[-1])
        np.add.at(counts.reshape(-1, size), (rows, index.reshape(-1)), 1)
        return counts
    torch = _namespace(index)
    counts = torch.zeros(*index.shape[:-1], size, device=index.device)
    return counts.scatter_add(-1, index, torch.ones_like(index, dtype=counts.dtype))


def topk_last(array: Array, k: int) -> tuple[Array, Array]:
    """The k largest values along the last axis, in descending order, and their indices."""
    if not isinstance(array, np.ndarray):
        values, index = array.topk(k)
        return values, index
    index = np.argpartition(array, array.shape[-1] - k, -1)[..., array.shape[-1] - k :]
    values = np.take_along_axis(array, index, -1)
    order = np.argsort(-values, -1, kind="stable")
    return np.take_along_axis(values, order, -1), np.take_along_axis(index, order, -1)


def windows_last(array: Array, size: int) -> Array:
    """All windows of ``size`` consecutive elements along the last axis: (..., T) -> (..., T - size + 1, size)."""
    if isinstance(array, np.ndarray):
        return np.lib.stride_tricks.sliding_window_view(array, size, -1)
    return array.unfold(-1, size, 1)


def to_host(array: Array) -> Array:
    """The array in float32 and in main memory."""
    return array if isinstance(array, np.ndarray) else array.float().cpu()
