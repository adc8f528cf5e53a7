"""Patients' trajectories at one site or at several, read from a table or a partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import UnknownSite
from fdtr.trajectories.chunks import SiteRows, Step
from fdtr.trajectories.patient_ids import PatientIds
from fdtr.trajectories.rows_in_memory import arrange, frozen
from fdtr.trajectories.table_checks import check
from fdtr.trajectories.table_sources import TableLayout, load

Floats = NDArray[np.float64]


# No generated repr anywhere below: it would print patients' values into logs.
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ManySites:
    """The rows of several sites one after another, for fits of many small sites at once.

    Row `start`[b, h] begins step h of site b, `start`[b, H] ends the site; within a site rows are those of a `Chunk`.
    `ended_value` has an entry for each patient, site after site, in the order of the site's first step.
    """

    states: Floats
    actions: NDArray[np.intp]
    rewards: Floats
    ended_value: Floats
    start: NDArray[np.intp]

    @property
    def n(self) -> NDArray[np.intp]:
        """Patients of each site at each step, (B, H)."""
        return np.diff(self.start, axis=1)


@dataclass(frozen=True)
class Sample:
    """How many of a site's patients were drawn for what cannot see them all.

    >>> print(Sample(100_212, 20_000_000))
    100,212 of 20,000,000 patients, drawn by a hash of their ids
    """

    n: int
    of: int

    def __str__(self) -> str:
        return f"{self.n:,} of {self.of:,} patients, drawn by a hash of their ids"


@dataclass(frozen=True, eq=False, repr=False)
class Trajectories:
    """Patients' trajectories at one site or at several.

    `covariates` are names, in the order of the rows of `states`; `meaning` is what the table was read as. Arrays are
    read-only views of one block. `sample` says of how many patients these are a sample; None if they are none.
    """

    horizon: int
    covariates: tuple[str, ...]
    n_actions: int
    meaning: tuple[Any, ...]
    _rows: Mapping[str, SiteRows]
    sample: Sample | None = None

    def __repr__(self) -> str:
        """Sizes only, never a patient's value."""
        where = f'site "{self.site}"' if len(self._rows) == 1 else f"{len(self._rows)} sites"
        size = f"{self.n_patients} patients, {self.n_rows} rows, horizon {self.horizon}"
        return f"<Trajectories: {where}, {size}>"

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, sorted."""
        return tuple(self._rows)

    @property
    def site(self) -> str:
        """Name of the only site."""
        if len(self._rows) != 1:
            fact = f"One site is needed and the table holds {len(self._rows)}."
            raise UnknownSite(f"{fact} Name one with --site; in Python, take one of by_site().")
        return next(iter(self._rows))

    @property
    def n_patients(self) -> int:
        """Patients at step 0, over all sites."""
        return sum(rows.counts[0] for rows in self._rows.values())

    @property
    def n_rows(self) -> int:
        """Rows of the table, over all sites and steps."""
        return sum(sum(rows.counts) for rows in self._rows.values())

    @property
    def patients(self) -> Any:
        """Ids of the only site's patients as Arrow text, in the order of step 0. They stay at the site."""
        return self._only.patients

    @property
    def clusters(self) -> Any:
        """Cluster labels in the order of `patients`; None where the table was read without clusters."""
        return self._only.clusters

    @property
    def clustered(self) -> bool:
        """Whether the only site's patients are in clusters."""
        return self._only.clustered

    @property
    def n_clusters(self) -> int | None:
        """Clusters of the only site; None where the table was read without clusters."""
        codes = self.cluster_codes()
        return None if codes is None else int(codes.max(initial=-1)) + 1

    def cluster_codes(self) -> NDArray[Any] | None:
        """The cluster of each patient as a number, (n,), in the order in which clusters come; None without clusters."""
        if not self.clustered:
            return None
        numbers: dict[str, int] = {}
        parts = [np.zeros(0, np.int32)]
        for batch in self._only.unit_batches():
            encoded = batch.dictionary_encode()
            number = [numbers.setdefault(label, len(numbers)) for label in encoded.dictionary.to_pylist()]
            parts.append(np.array(number, np.int32)[encoded.indices.to_numpy()])
        return np.concatenate(parts)

    @cached_property
    def ids(self) -> PatientIds:
        """Ids of the only site's patients, which are read when they are needed. They stay at the site."""
        return PatientIds(self.n_patients, self._only.id_batches)

    @cached_property
    def lengths(self) -> NDArray[np.uint16]:
        """Number of steps of each patient, (n,): at every step, the patients who continue come first."""
        present = np.array([*self._only.counts, 0])
        return frozen(np.repeat(np.arange(self.horizon, 0, -1, dtype=np.uint16), -np.diff(present)[::-1]))

    def units(self) -> Iterator[str]:
        """Independent units in the order of `patients`: clusters, or patients where the table has no clusters."""
        for batch in self._only.unit_batches():
            yield from batch.to_pylist()

    @property
    def clipped(self) -> Mapping[str, int]:
        """By covariate, how many values of the table lay outside the range; `select` keeps the counts."""
        return self._total([rows.clipped for rows in self._rows.values()])

    @property
    def filled(self) -> Mapping[str, int]:
        """By covariate, how many values of the table were missing and filled; `select` keeps the counts."""
        return self._total([rows.filled for rows in self._rows.values()])

    def step(self, h: int) -> Step:
        """Rows of the only site at step `h`, counted from 0."""
        if not 0 <= h < self.horizon:
            raise IndexError(f"Step {h} is not one of 0 … {self.horizon - 1}.")
        return self._only.step(h)

    def by_site(self) -> dict[str, Trajectories]:
        """Each site on its own, sorted by name; views, not copies."""
        return {name: replace(self, _rows={name: rows}) for name, rows in self._rows.items()}

    @property
    def n_by_site(self) -> NDArray[np.intp]:
        """Patients of each site at step 0, (K,), in the order of `sites`."""
        return np.array([rows.counts[0] for rows in self._rows.values()], np.intp)

    def of_sites(self, sites: Sequence[str]) -> ManySites:
        """The rows of some sites together, in this order."""
        chosen = [self._rows[site].in_memory() for site in sites]
        start = np.array([rows.start for rows in chosen], np.intp)
        before = np.concatenate(([0], np.cumsum(start[:-1, -1])))
        return ManySites(
            states=np.concatenate([rows.states for rows in chosen], axis=1),
            actions=np.concatenate([rows.actions for rows in chosen]),
            rewards=np.concatenate([rows.rewards for rows in chosen]),
            ended_value=np.concatenate([rows.ended_value for rows in chosen]),
            start=start + before[:, None],
        )

    def select(self, patients: NDArray[np.bool_]) -> Trajectories:
        """The only site's patients that are True in the mask, which follows the order of `.patients`."""
        mask = np.asarray(patients)
        if mask.dtype != np.bool_ or mask.shape != (self.n_patients,):
            raise ValueError(f"The mask must be {self.n_patients} booleans, one a patient.")
        return replace(self, _rows={self.site: self._only.select(mask)}, sample=None)

    def draw(self, patients: NDArray[np.bool_]) -> Trajectories:
        """The only site's patients that are True in the mask, in memory, as a sample of all."""
        chosen = self.select(patients)
        sample = Sample(chosen.n_patients, self.n_patients)
        return replace(chosen, _rows={self.site: chosen._only.in_memory()}, sample=sample)

    def recast(self, layout: TableLayout, levels: Sequence[int]) -> Trajectories:
        """The rows as `layout` would have read them: fewer steps, merged actions, narrower ranges.

        `levels` (A,) maps the positions of action levels onto those of `layout`.
        """
        onto, horizon = np.asarray(levels, np.intp), layout.horizon
        recast = {site: rows.recast(horizon, layout, onto) for site, rows in self._rows.items()}
        return replace(self, horizon=horizon, n_actions=len(layout.action_levels), meaning=layout.meaning, _rows=recast)

    def action_counts(self) -> NDArray[np.int64]:
        """(H, A): how often the only site took each action at each step."""
        counts = np.zeros((self.horizon, self.n_actions), np.int64)
        for h, row in enumerate(counts):
            for chunk in self._only.step(h).chunks():
                row += np.bincount(chunk.actions, minlength=self.n_actions)
        return counts

    @property
    def _only(self) -> SiteRows:
        return self._rows[self.site]

    def _total(self, counts: list[tuple[int, ...]]) -> Mapping[str, int]:
        return dict(zip(self.covariates, map(sum, zip(*counts, strict=True)), strict=True))


def read(source: object, layout: TableLayout, site: str | None = None) -> Trajectories:
    """Read a table, check it once and arrange it by site and step.

    `source` is the path of a CSV file, a Parquet file or a folder of Parquet files, or a dataframe that
    narwhals knows. `site` names the one site of a table without a site column; with one, it keeps that site's
    rows only. All faults of the table come together in one `InvalidTable`.

    >>> import pyarrow as pa
    >>> from fdtr.trajectories import Covariate
    >>> rows = {"patient": ["p", "q"], "step": [0, 0], "action": [1, 0], "reward": [5, 10], "age": [30, 130]}
    >>> layout = TableLayout(1, (Covariate("age", "age", 0, 120),), (0, 1), 0, 10)
    >>> data = read(pa.table(rows), layout, site="north")
    >>> data
    <Trajectories: site "north", 2 patients, 2 rows, horizon 1>
    >>> chunk, = data.step(0).chunks()
    >>> chunk.states, chunk.actions, chunk.rewards, data.clipped
    (array([[ 30., 120.]]), array([1, 0]), array([0.5, 1. ]), {'age': 1})
    """
    checked = check(load(source, layout), layout, str(site).strip() if site is not None else None)
    names = tuple(covariate.name for covariate in layout.covariates)
    return Trajectories(layout.horizon, names, len(layout.action_levels), layout.meaning, arrange(checked, layout))
