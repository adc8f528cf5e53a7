"""A site's Table 1: its patients at the first step, as a group, by what was measured of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr import container
from fdtr.disclosure import Release, TableOne, release_table
from fdtr.disclosure.table_one import MISSING, Fact, Groups, Measured
from fdtr.errors import NotNoised, OtherPayload
from fdtr.site.tables import require_rows
from fdtr.study import Study
from fdtr.study.sections import Covariate
from fdtr.trajectories import Trajectories
from fdtr.trajectories.table_sources import load, numbers, texts

WHOLE = "followed to the last step"


# No repr: it would print patients' values.
@dataclass(frozen=True, eq=False, repr=False)
class _Charted:
    """What a table says itself: `first` the covariates at step 0, neither clipped nor filled, NaN where missing.

    `ends` counts how trajectories ended before the last step.
    """

    first: Mapping[str, NDArray[np.float64]]
    ends: Mapping[str, int]


def tell_table(study: Study, rows: Trajectories, source: Any, units: Mapping[str, str] | None = None) -> TableOne:
    """Table 1 of one site: covariates and actions at the first step, and how trajectories ended.

    `source` is the table that `rows` were read from: rows have been clipped and filled, which is right for fitting, and
    would be false here. `units` are those of covariates, by name.
    """
    require_rows(study, rows)
    asked = study.disclosure
    if asked.secure_sum:
        raise OtherPayload(
            "The study asks for a secure sum, in which nobody sees one site's numbers, and a Table 1 would show them. "
            "None was written."
        )
    if asked.epsilon is not None:
        raise NotNoised(
            "The study asks for differential privacy (epsilon), and a Table 1 would leave this site without noise. "
            "None was written."
        )
    facts = list(_facts(study, rows, _charted(study, rows.site, source), units or {}))
    return release_table(rows.site, study.fingerprint, rows.n_patients, facts, asked.min_patients, asked.min_cell)


def release_of_table(study: Study, rows: Trajectories, table: TableOne) -> Release:
    """A Table 1 as the ledger knows it: beside the site's sums, as if of features of its own."""
    return Release(
        study=study.fingerprint,
        feature_map=container.fingerprint({"table_of": study.feature_fingerprint}),
        site=rows.site,
        message=table.digest,
        content=table.content,
        margin=study.disclosure.once_margin,
        patients=rows.patients.to_pylist(),
    )


def _charted(study: Study, site: str, source: Any) -> _Charted:
    """Of a table that was read without faults."""
    spec = study.table_layout
    columns = load(source, spec).arrow
    step = _values(columns[spec.step])
    here = _equal(columns.get(spec.site), site) if spec.site in columns else np.ones(len(step), np.bool_)
    early = here & (step < study.horizon - 1)
    ends = {end: int((early & _equal(columns.get(spec.end), end)).sum()) for end in study.ends}
    first = here & (step == 0)
    return _Charted({one.name: _values(columns[one.column])[first] for one in spec.covariates}, ends)


def _values(column: Any) -> NDArray[np.float64]:
    found = numbers(column)
    return np.zeros(0) if found is None else found.values


def _equal(column: Any, name: str) -> NDArray[np.bool_]:
    """Where a column of text, if there is one, says `name`."""
    found = None if column is None else texts(column)
    if found is None:
        return np.zeros(1, np.bool_)
    same = [label == name for label in found.labels.to_pylist()]
    return np.array([*same, False])[found.codes]  # a code of -1 is an empty cell


def _facts(study: Study, rows: Trajectories, charted: _Charted, units: Mapping[str, str]) -> Iterator[Fact]:
    for covariate in study.covariates:
        if covariate.level != "site":  # about the site, not about its patients
            yield _fact(covariate, charted.first[covariate.name], units.get(covariate.name, ""))
    actions = rows.action_counts()[0].tolist()
    yield Groups("first action", dict(zip(study.actions.labels, actions, strict=True)))
    if study.ends:
        yield Groups("end", {WHOLE: rows.step(study.horizon - 1).n, **charted.ends}, public=frozenset({WHOLE}))


def _fact(covariate: Covariate, values: NDArray[np.float64], unit: str) -> Fact:
    known = values[~np.isnan(values)]
    levels, counts = np.unique(known, return_counts=True)
    if len(levels) != 2:
        return Measured(covariate.name, values, unit)
    named = {f"{level:g}": int(count) for level, count in zip(levels, counts, strict=True)}
    return Groups(covariate.name, {**named, MISSING: len(values) - len(known)}, unit)
