"""Arrays of any library: what NumPy, PyTorch and others spell differently in a pass over the rows.

The maths is written once, with functions that array-api-compat gives every library under the same name. Functions here
take the arrays of rows as they are, and small arrays of NumPy. With NumPy each of them is one call of NumPy, and
array-api-compat is not imported.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_PARTIAL_COLUMNS = 4096
"""Columns of one partial product: enough of them keep a graphics processor busy."""


def is_numpy(array: Any) -> bool:
    """Whether `array` is one of NumPy, the fast way that every part of a pass has."""
    return isinstance(array, np.ndarray)


def namespace_of(array: Any) -> Any:
    """The functions for `array`: NumPy itself, or another library as array-api-compat presents it.

    >>> namespace_of(np.zeros(2)) is np
    True
    """
    if is_numpy(array):
        return np
    from array_api_compat import array_namespace

    return array_namespace(array)


def like(values: Array, array: Array) -> Array:
    """Small `values` of NumPy where `array` lies, in its precision."""
    if is_numpy(array):
        return values
    from array_api_compat import device, is_torch_array

    xp, copy = namespace_of(array), np.array(values)
    if is_torch_array(array):  # `asarray` with a device would wait until everything before is computed
        return cast(Array, xp.asarray(copy, dtype=array.dtype).to(array.device, non_blocking=True))
    return cast(Array, xp.asarray(copy, dtype=array.dtype, device=device(array)))


def empty(shape: tuple[int, ...], array: Array) -> Array:
    """A new array where `array` lies, in its precision."""
    if is_numpy(array):
        return np.empty(shape)
    from array_api_compat import device

    return cast(Array, namespace_of(array).empty(shape, dtype=array.dtype, device=device(array)))


def zeros(shape: tuple[int, ...], array: Array) -> Array:
    """Zeros in float64 where `array` lies, for sums."""
    if is_numpy(array):
        return np.zeros(shape)
    from array_api_compat import device

    xp = namespace_of(array)
    return cast(Array, xp.zeros(shape, dtype=xp.float64, device=device(array)))


def to_numpy(array: Any) -> NDArray[Any]:
    """`array` in memory."""
    if is_numpy(array):
        return cast(NDArray[Any], array)
    from array_api_compat import is_torch_array

    return np.from_dlpack(array.cpu() if is_torch_array(array) else array)


def write(function: Callable[..., Any], *arguments: Any, out: Array) -> None:
    """Write what a `function` of a namespace gives into `out`, without a copy if the library can."""
    if is_numpy(out):
        function(*arguments, out=out)
        return
    from array_api_compat import is_torch_array

    if is_torch_array(out):
        function(*arguments, out=out)
    else:
        out[...] = namespace_of(out).astype(function(*arguments), out.dtype)


def dot(matrix: Array, rows: Array) -> Array:
    """`matrix` (p, q) of NumPy times `rows` (q, n)."""
    if is_numpy(rows):
        return cast(Array, np.dot(matrix, rows))  # `dot`, unlike `@`, lets other threads run meanwhile
    return cast(Array, namespace_of(rows).matmul(like(matrix, rows), rows))


def write_largest(rows: Array, out: Array) -> None:
    """Write the largest number of each column of `rows` (q, n) into `out` (n,)."""
    if is_numpy(rows):
        np.maximum.reduce(rows, axis=0, out=out)
    else:
        out[...] = namespace_of(rows).max(rows, axis=0)


def add_gram(rows: Array, to: Array) -> None:
    """Add Z Zᵀ in float64 `to` a sum (q, q); Z is `rows` (q, n).

    It is the sum of products of some thousand columns each, always the same ones. A library would give a product of two
    short sides and a long one to few of a device's processors, and would add float32 numbers in float32.
    """
    xp, (q, n) = namespace_of(rows), rows.shape
    if not n:
        return
    parts = max(1, n // max(_PARTIAL_COLUMNS, 256 * q))
    length = n // parts
    blocks = xp.permute_dims(xp.reshape(rows[:, : parts * length], (q, parts, length)), (1, 0, 2))
    to += xp.sum(xp.matmul(blocks, xp.matrix_transpose(blocks)), axis=0, dtype=xp.float64)
    rest = rows[:, parts * length :]
    if rest.shape[1]:
        to += xp.astype(xp.matmul(rest, xp.matrix_transpose(rest)), xp.float64)


@dataclass(frozen=True, eq=False, repr=False)
class Runs:
    """The group of each of n rows that lie by group: `values` (n,), and `runs`, each its group, start and stop."""

    values: Any
    runs: tuple[tuple[int, int, int], ...]

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def __getitem__(self, rows: slice) -> "Runs":
        first, last, _ = rows.indices(len(self))
        inside = [(group, max(start, first), min(stop, last)) for group, start, stop in self.runs]
        kept = [(group, start - first, stop - first) for group, start, stop in inside if start < stop]
        return Runs(self.values[rows], tuple(kept))


def count_groups(groups: Any, n_groups: int) -> NDArray[np.intp]:
    """How many rows each group has, (n_groups,); `groups` (n,) or `Runs`.

    >>> count_groups(np.array([0, 2, 0]), 3), count_groups(Runs(np.array([1, 1, 0]), ((1, 0, 2), (0, 2, 3))), 3)
    (array([2, 0, 1]), array([1, 2, 0]))
    """
    if isinstance(groups, Runs):
        counts = np.zeros(n_groups, np.intp)
        for group, start, stop in groups.runs:
            counts[group] += stop - start
        return counts
    if is_numpy(groups):
        return np.bincount(groups, minlength=n_groups)
    from array_api_compat import device

    xp = namespace_of(groups)
    first = xp.arange(n_groups + 1, dtype=groups.dtype, device=device(groups))
    return np.diff(to_numpy(xp.searchsorted(xp.sort(groups), first)))


def sum_groups(rows: Array, groups: Any, n_groups: int) -> Array:
    """Sums of each row of `rows` (q, n) over the columns of each group, (n_groups, q), in float64."""
    xp = namespace_of(rows)
    if is_numpy(rows):
        return np.stack([np.bincount(groups, weights=row, minlength=n_groups) for row in rows], axis=1)
    of_groups = [xp.astype(groups == group, rows.dtype) for group in range(n_groups)]
    return cast(Array, xp.stack([xp.sum(rows * inside, axis=1, dtype=xp.float64) for inside in of_groups]))
