"""The states a policy acts on: a dataframe, a mapping of columns or an array, checked and read in blocks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.threads import rows_in_cache
from fdtr.errors import InvalidStates
from fdtr.features.mapping import FeatureMap

Array = NDArray[np.float64]


@dataclass(frozen=True)
class StateBlocks:
    """`n` states as columns or rows of one array; blocks of (q, `size`) are read inside the public ranges."""

    array: Array
    by_row: bool
    features: FeatureMap

    @property
    def size(self) -> int:
        """Number of states in one block."""
        return rows_in_cache(self.features.n_functions)

    @property
    def n(self) -> int:
        """Number of states."""
        return int(self.array.shape[0 if self.by_row else 1])

    def raw(self, number: int) -> Array:
        """One state as the caller passed it, (q,)."""
        return self.array[number] if self.by_row else self.array[:, number]

    def read(self, start: int) -> Array:
        """The states from `start` on, (q, at most `size`): checked, and clipped to the ranges."""
        stop = start + self.size
        block = self.array[start:stop].T if self.by_row else self.array[:, start:stop]
        if self.features.has_levels or not np.isfinite(block).all():
            self._refuse_faults(block, start)
        return self.features.clip(block)

    def _refuse_faults(self, block: Array, start: int) -> None:
        for name, allowed, values in zip(self.features.covariates, self.features.allowed, block, strict=True):
            wrong = ~np.isfinite(values)
            if wrong.any():
                raise InvalidStates(
                    f"Column {name!r} has {_counted(wrong, start)} without a finite value. Fill them first."
                )
            wrong = np.zeros(len(values), dtype=bool) if allowed is None else ~np.isin(values, allowed)
            if wrong.any():
                known = ", ".join(f"{level:g}" for level in allowed or ())
                raise InvalidStates(
                    f"Column {name!r} has {_counted(wrong, start)} outside the study's levels ({known})."
                )


def state_blocks(states: Any, features: FeatureMap) -> StateBlocks:
    """Read `states` from a dataframe, a mapping of columns, or an (n, q) array in the study's covariate order."""
    if isinstance(states, np.ndarray | list | tuple):
        return StateBlocks(_as_rows(states, features), True, features)
    if not isinstance(states, Mapping):
        from narwhals.dependencies import is_pandas_series

        states = dict(states.items()) if is_pandas_series(states) else states  # one row of a dataframe
    if isinstance(states, Mapping):
        columns = {name: _column(name, states[name]) for name in features.covariates if name in states}
    else:
        columns = _dataframe_columns(states, features)
    missing = [name for name in features.covariates if name not in columns]
    if missing:
        raise InvalidStates(
            f"The states lack {_listed(missing)}. This policy needs the columns {_listed(features.covariates)}, "
            "in raw units."
        )
    lengths = {name: len(columns[name]) for name in features.covariates}
    if len(set(lengths.values())) > 1:
        raise InvalidStates(f"The columns differ in length: {', '.join(f'{k} {v}' for k, v in lengths.items())}.")
    return StateBlocks(np.stack([columns[name] for name in features.covariates]), False, features)


def _as_rows(states: Any, features: FeatureMap) -> Array:
    array = _numbers("states", states)
    if array.ndim == 1:
        array = array[None, :]
    if array.ndim != 2 or array.shape[1] != len(features.covariates):
        raise InvalidStates(
            f"An array of states has one row for each patient and {len(features.covariates)} columns "
            f"({_listed(features.covariates)}); this one has the shape {array.shape}."
        )
    return array


def _dataframe_columns(states: Any, features: FeatureMap) -> dict[str, Array]:
    import narwhals as nw

    try:
        frame = nw.from_native(states)
    except TypeError:
        raise InvalidStates(
            f"States may be a dataframe, a mapping of columns or an array, not {type(states).__name__}."
        ) from None
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect()
    return {name: _column(name, frame[name].to_numpy()) for name in features.covariates if name in frame.columns}


def _column(name: str, values: Any) -> Array:
    column = np.atleast_1d(_numbers(name, values))
    if column.ndim != 1:
        raise InvalidStates(f"Column {name!r} has {column.ndim} dimensions; a column has one.")
    return column


def _numbers(name: str, values: Any) -> Array:
    try:
        array = np.asarray(values)
        if array.dtype.kind in "mM":  # dates would silently become numbers
            raise TypeError
        return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidStates(f"{name!r} holds something that is not a number.") from None


def _counted(wrong: NDArray[np.bool_], start: int) -> str:
    rows = np.flatnonzero(wrong)
    return f"{len(rows)} row{'s' if len(rows) > 1 else ''} (the first is number {start + rows[0] + 1})"


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in names)
