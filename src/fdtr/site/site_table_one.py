"""A site's Table 1: its patients at the first step, as a group."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr import container
from fdtr.disclosure import Release, TableOne, release_table
from fdtr.disclosure.released_table import MISSING, Fact, Groups, Measured
from fdtr.errors import DisclosureError, ExchangeError
from fdtr.site.rows import require_rows
from fdtr.study import Study
from fdtr.study.sections import Covariate
from fdtr.trajectories import Trajectories
from fdtr.trajectories.table_columns import numbers, texts
from fdtr.trajectories.table_sources import load

WHOLE = "followed to the last step"


# No repr: it would print patients' values.
@dataclass(frozen=True, eq=False, repr=False)
class _RawTable:
    """The raw table: `first` holds the covariates at step 0, neither clipped nor filled, NaN where missing.

    `ends` counts the trajectories that ended before the last step, by the name of the end.
    """

    first: Mapping[str, NDArray[np.float64]]
    ends: Mapping[str, int]


def summarize_table(study: Study, rows: Trajectories, source: Any, units: Mapping[str, str] | None = None) -> TableOne:
    """Table 1 of one site: covariates and actions at the first step, and how trajectories ended.

    `source` is the table that `rows` were read from: clipped and filled values, right for fitting, would be wrong in a
    description. `units` are those of covariates, by name.
    """
    require_rows(study, rows)
    section = study.disclosure
    if section.secure_sum:
        raise ExchangeError(
            "The study asks for a secure sum, in which nobody sees one site's numbers, and a Table 1 would show them. "
            "None was written."
        )
    if section.epsilon is not None:
        raise DisclosureError(
            "NOISE",
            "The study asks for differential privacy (epsilon), and a Table 1 would leave this site without noise. "
            "None was written.",
        )
    facts = list(_facts(study, rows, _raw_table(study, rows.site, source), units or {}))
    return release_table(rows.site, study.fingerprint, rows.n_patients, facts, section.min_patients, section.min_cell)


def release_of_table(study: Study, rows: Trajectories, table: TableOne) -> Release:
    """Ledger entry for a Table 1. It has a feature map of its own, so it is not compared with the site's sums."""
    return Release(
        study=study.fingerprint,
        feature_map=container.fingerprint({"table_of": study.feature_fingerprint}),
        site=rows.site,
        message=table.digest,
        content=table.content,
        margin=study.disclosure.once_margin,
        patients=rows.ids,
    )


def _raw_table(study: Study, site: str, source: Any) -> _RawTable:
    """The raw values of a table that was read without faults."""
    layout = study.table_layout
    columns = load(source, layout).arrow
    step = _values(columns[layout.step])
    of_site = _equal(columns.get(layout.site), site) if layout.site in columns else np.ones(len(step), np.bool_)
    early = of_site & (step < study.horizon - 1)
    ends = {end: int((early & _equal(columns.get(layout.end), end)).sum()) for end in study.ends}
    first = of_site & (step == 0)
    return _RawTable({c.name: _values(columns[c.column])[first] for c in layout.covariates}, ends)


def _values(column: Any) -> NDArray[np.float64]:
    number = numbers(column)
    return np.zeros(0) if number is None else number.values


def _equal(column: Any, name: str) -> NDArray[np.bool_]:
    """Rows in which a text column holds `name`; a single False where there is no such column."""
    text = None if column is None else texts(column)
    if text is None:
        return np.zeros(1, np.bool_)
    same = [label == name for label in text.labels.to_pylist()]
    return np.array([*same, False])[text.codes]  # a code of -1 is an empty cell


def _facts(study: Study, rows: Trajectories, raw: _RawTable, units: Mapping[str, str]) -> Iterator[Fact]:
    for covariate in study.covariates:
        if covariate.level != "site":  # about the site, not about its patients
            yield _fact(covariate, raw.first[covariate.name], units.get(covariate.name, ""))
    actions = rows.action_counts()[0].tolist()
    yield Groups("first action", dict(zip(study.actions.labels, actions, strict=True)))
    if study.ends:
        yield Groups("end", {WHOLE: rows.step(study.horizon - 1).n, **raw.ends}, public=frozenset({WHOLE}))


def _fact(covariate: Covariate, values: NDArray[np.float64], unit: str) -> Fact:
    known = values[~np.isnan(values)]
    levels, counts = np.unique(known, return_counts=True)
    if len(levels) != 2:
        return Measured(covariate.name, values, unit)
    named = {f"{level:g}": int(count) for level, count in zip(levels, counts, strict=True)}
    return Groups(covariate.name, {**named, MISSING: len(values) - len(known)}, unit)
