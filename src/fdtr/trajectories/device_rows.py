"""Rows on a graphics processor: each step lies there by action, and its sums are computed there.

Everything else is asked of the rows that were moved, which stay where they are: ids, folds, disclosure, evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.namespaces import Runs, namespace_of, to_numpy
from fdtr.errors import InvalidSettings, MissingExtra
from fdtr.trajectories.chunks import CHUNK_ROWS, Chunk, SiteRows, Step
from fdtr.trajectories.rows_in_memory import StepInMemory
from fdtr.trajectories.step_sums import Arrays, ChunkSums, added
from fdtr.trajectories.table_sources import TableLayout
from fdtr.trajectories.trajectory_data import Trajectories

Precision = Literal["float64", "float32"]

MOVED_ROWS = 2**20
"""Rows that are copied to a device at once."""

CACHES = 256
"""Chunks of a processor's cache that make one of a device: 7 million rows of nine columns, half a GiB.

Penalties take as much for each action.
"""


@dataclass(frozen=True)
class Place:
    """Where arrays lie: the functions of their library as array-api-compat presents it, the device, the precision."""

    namespace: Any
    device: Any
    dtype: Precision

    def array(self, values: NDArray[Any], dtype: Any = None) -> Any:
        """A copy there, in its precision unless `dtype` is named."""
        xp = self.namespace
        # Libraries warn of arrays that may not be written, as those of a table are.
        return xp.asarray(np.array(values), dtype=dtype or getattr(xp, self.dtype), device=self.device)

    def empty(self, *shape: int) -> Any:
        """A new array there."""
        return self.namespace.empty(shape, dtype=getattr(self.namespace, self.dtype), device=self.device)


def to_device(rows: Trajectories, device: str, dtype: Precision = "float64") -> Trajectories:
    """Copy rows to a device of PyTorch, such as "cuda" or "cuda:1". Sums over them are then computed there.

    Give the result to whatever takes trajectories. `fit_local`, `fit_federated`, Q-learning and the folds of tuning
    compute on the device; what else needs rows, such as disclosure rules and evaluation, takes them from `rows`, where
    they are. θ is that of a processor up to 1e-9. With `dtype` "float32" rows take half the space, and docs/methods.md
    says by how much θ differs. Sums differ in their last digits from one machine to another: release messages
    from `rows`. PyTorch is needed: `pip install 'fdtr[gpu]'`.
    """
    if dtype not in ("float64", "float32"):
        raise InvalidSettings(f'The precision of rows on a device is "float64" or "float32", not {dtype!r}.')
    try:
        import array_api_compat.torch as namespace
    except ImportError:
        raise MissingExtra("Rows on a device take PyTorch. Install it: pip install 'fdtr[gpu]'") from None
    try:
        namespace.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # PyTorch has no error of its own for this
        reason = str(error).strip().partition("\n")[0]
        raise InvalidSettings(
            f"PyTorch cannot use the device {device!r}: {reason} Nothing was written. Name another device, or fit the "
            "rows where they are."
        ) from None
    if dtype == "float32" and namespace.get_float32_matmul_precision() != "highest":
        raise InvalidSettings(
            "PyTorch is set to multiply float32 numbers with fewer digits, and the error of sums is not known then. "
            'Nothing was written. Call torch.set_float32_matmul_precision("highest"), or take "float64".'
        )
    return move(rows, Place(namespace, device, dtype))


def move(rows: Trajectories, place: Place) -> Trajectories:
    """Rows with copies at a place where sums over them are computed."""
    moved = {name: RowsOnDevice(of_site, rows.n_actions, place) for name, of_site in rows._rows.items()}
    return replace(rows, _rows=cast(dict[str, SiteRows], moved))


@dataclass(frozen=True, eq=False, repr=False)
class RowsOnDevice:
    """One site's rows: `source`, and copies of them at a `place`. What is not here is asked of `source`."""

    source: SiteRows
    n_actions: int
    place: Place
    steps: Sequence[Step] = field(init=False)

    def __post_init__(self) -> None:
        steps: list[Step] = []
        following: Any = None
        with _room():
            for h in reversed(range(len(self.source.counts))):
                step, following = _moved(self.source.step(h), following, self.n_actions, self.place)
                steps.insert(0, step)
        object.__setattr__(self, "steps", steps)

    def __getattr__(self, name: str) -> Any:
        if name == "source":  # a copy that has none yet
            raise AttributeError(name)
        return getattr(self.source, name)

    def step(self, h: int) -> Step:
        """One step, whose sums are computed at the place."""
        return self.steps[h]

    def select(self, mask: NDArray[np.bool_]) -> SiteRows:
        """The patients that are True in the mask, copied to the same place."""
        return cast(SiteRows, replace(self, source=self.source.select(mask)))

    def recast(self, horizon: int, layout: TableLayout, onto: NDArray[np.intp]) -> SiteRows:
        """Rows as `layout` would have read them, copied to the same place."""
        recast = self.source.recast(horizon, layout, onto)
        return cast(SiteRows, replace(self, source=recast, n_actions=len(layout.action_levels)))


@dataclass(frozen=True, eq=False, repr=False)
class StepOnDevice:
    """One step: `source`, and `resident`, a copy of its rows on a device.

    There, those who go on come first, as everywhere, and by action; the others follow, by action. `patients` (n,) has
    the position of each row in `source`.
    """

    source: Step
    resident: StepInMemory
    patients: Any

    @property
    def n(self) -> int:
        """Patients at this step."""
        return self.source.n

    @property
    def n_next(self) -> int:
        """Patients that go on to the next step."""
        return self.source.n_next

    def chunks(self, size: int = CHUNK_ROWS, *, following: bool = True) -> Iterator[Chunk]:
        """Chunks of the rows that were copied, in memory and in their order."""
        return self.source.chunks(size, following=following)

    def sums(self, work: ChunkSums, size: int, labels: NDArray[np.integer[Any]] | None = None) -> Arrays:
        """What `work` gives for large chunks on the device, added up in memory."""
        size, total = size * CACHES, work.zeros()
        by_row = None if labels is None else self._by_row(labels)
        with _room():
            # One thread, which waits for no sum before all are on their way: the device has threads enough.
            parts = [
                work(chunk, None if by_row is None else by_row[start : min(start + size, self.n)])
                for start, chunk in zip(range(0, self.n, size), self.resident.chunks(size), strict=True)
            ]
            for part in parts:
                added(total, tuple(to_numpy(array) for array in part))
        return total

    def _by_row(self, labels: NDArray[np.integer[Any]]) -> Any:
        """Labels of the resident rows."""
        xp = namespace_of(self.patients)
        by_patient = xp.asarray(labels[: self.n].astype(np.int64), device=self.patients.device)
        return xp.take(by_patient, self.patients)


@contextmanager
def _room() -> Iterator[None]:
    """Say what to do where a device's memory is full."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # PyTorch's, which may not be installed
            raise
        raise InvalidSettings(
            "The device's memory is too small for these rows and what is computed from them. Nothing was written. Take "
            'dtype="float32", a larger device, or fit the rows where they are.'
        ) from None


def _moved(step: Step, following: Any, n_actions: int, place: Place) -> tuple[Step, Any]:
    """A step by action at a place, and its states in their own order; `following` are those of the next step."""
    xp, n, n_next = place.namespace, step.n, step.n_next
    states, rewards, ended = None, place.empty(n), place.empty(n - n_next)
    actions, start = np.empty(n, np.int32), 0
    for chunk in step.chunks(MOVED_ROWS):
        stop = start + len(chunk.actions)
        states = place.empty(len(chunk.states), n) if states is None else states
        states[:, start:stop] = place.array(chunk.states)
        rewards[start:stop] = place.array(chunk.rewards)
        ended[max(start - n_next, 0) : max(stop - n_next, 0)] = place.array(chunk.ended_value)
        actions[start:stop] = chunk.actions
        start = stop
    if states is None:
        return step, None  # nobody is there
    groups = place.array(actions, xp.int32)
    parts = [(slice(n_next), 0), (slice(n_next, n), n_next)]
    order = xp.concat([xp.argsort(groups[rows], stable=True) + first for rows, first in parts])
    runs = [run for rows, first in parts for run in _runs(np.bincount(actions[rows], minlength=n_actions), first)]
    by_action = Chunk(
        states=xp.take(states, order, axis=1),
        actions=cast(Any, Runs(xp.take(groups, order), tuple(runs))),
        rewards=xp.take(rewards, order),
        next_states=states[:, :0] if following is None else xp.take(following, order[:n_next], axis=1),
        ended_value=xp.take(ended, order[n_next:] - n_next),
    )
    return StepOnDevice(step, StepInMemory(by_action), xp.astype(order, xp.int32)), states


def _runs(counts: NDArray[np.intp], first: int) -> Iterator[tuple[int, int, int]]:
    """Where the rows of each action begin and end, if they lie by action from row `first` on."""
    stops = (first + np.cumsum(counts)).tolist()
    for action, (count, stop) in enumerate(zip(counts.tolist(), stops, strict=True)):
        if count:
            yield action, stop - count, stop
