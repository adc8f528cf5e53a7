"""From stays, measurements and doses to the long table: one row a stay and step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fdtr.cohort.absent import STATE, Counted, Counts, absent, refusal, sparse
from fdtr.cohort.database import Database
from fdtr.cohort.dialects import quoted, statement
from fdtr.cohort.dictionary import Entry, describe
from fdtr.cohort.flow import Flow
from fdtr.cohort.rules import keep_large_sites
from fdtr.cohort.settings import MEASURED, MISSING, Charted, Extraction, Outcome
from fdtr.errors import EmptyCohort, NoValues, OneSite
from fdtr.progress import Progress, ignore_progress

Array = NDArray[np.float64]

HOUR = 3_600_000_000
"""In microseconds, the unit of time of the SQL files: whole numbers, in which both engines are exact."""

NONE_LEFT_OUT = pa.table(
    {"reason": pa.array([], pa.string()), "name": pa.array([], pa.string()), "entries": pa.array([], pa.int64())}
)
PARTS = ("observed", "presence", "readings", "volumes")


def _nothing_more(_: str) -> str:
    return ""


@dataclass(frozen=True)
class Source:
    """Where the three relations come from: the `flow` so far, and where each column was read.

    `origins` maps names of covariates, of the outcome and "dose" to a text such as "chartevents 220179, 220050".
    `left_out` is the SQL that counts entries of `table_stays` that no relation holds: reason, name, entries. `hint`
    says of a name that has no value what the source holds of it instead. `notes` are sentences for the user. Sites with
    fewer than `smallest_site` stays of the table leave it.
    """

    flow: Flow
    origins: Mapping[str, str] = field(default_factory=dict)
    left_out: str | None = None
    hint: Callable[[str], str] = _nothing_more
    notes: tuple[str, ...] = ()
    smallest_site: int = 1


@dataclass(frozen=True, eq=False, repr=False)
class Extracted:
    """The long `table`, and what has to be known about it.

    Columns: site, patient, person, step, each covariate, each covariate's `_missing` indicator, site covariates, dose
    (ml), action, reward, the outcome's `_measured` indicator, end. `missing` counts gaps by site, step and column;
    `left_out` counts entries that could not be used, by reason and name; `notes` are sentences that a person has to
    read. `carried` are the stays, by `patient`, whose outcome was carried beyond its look-back at some step.
    """

    table: pa.Table
    settings: Extraction
    flow: Flow
    dictionary: tuple[Entry, ...]
    missing: pa.Table
    left_out: pa.Table
    notes: tuple[str, ...] = ()
    carried: frozenset[str] = frozenset()


def make_table(
    db: Database, settings: Extraction, source: Source, progress: Progress = ignore_progress, *, sites: int = 2
) -> Extracted:
    """The long table from the relations `stays`, `measurements` and `doses` of `db`.

    A cohort of fewer than `sites` sites is refused: ask for 1 where the table is one site's own.
    """
    put_settings(db, settings)
    for number, part in enumerate(PARTS):
        progress(part, number, len(PARTS) + 2)
        db.make(part, statement(part))
    progress("steps", len(PARTS), len(PARTS) + 2)
    db.make("states", _pivot([covariate.name for covariate in settings.covariates]))
    before = _of_one_site(db.arrow(statement("steps")), settings.options.site)
    flow = source.flow.then("there when step 0 begins", left=_count(before["stay_id"]))
    rows, flow = _with_outcome(before, settings, flow)
    rows, flow = keep_large_sites(rows, flow, source.smallest_site)
    progress("counts", len(PARTS) + 1, len(PARTS) + 2)
    counted = _counted(db, source, rows if rows.num_rows else before)
    _refuse_absent(before, rows, settings, source, counted)
    _refuse_small(rows, flow, sites)
    table = _columns(rows, settings, _site_values(db, settings))
    missing = count_missing(table, settings)
    notes = (*source.notes, *sparse(table, settings))
    progress("table", len(PARTS) + 2, len(PARTS) + 2)
    described = describe(settings, source.origins, table, counted)
    return Extracted(table, settings, flow, described, missing, counted.left_out, notes, _carried(rows, settings))


def put_settings(db: Database, settings: Extraction) -> None:
    """Bring the settings into the session, as the small relations that the SQL files join with."""
    length, steps = round(settings.step_hours * HOUR), settings.steps
    at = np.arange(steps + 1) * length
    grid = {"step": np.arange(steps + 1), "begins": at, "ends": at + length}
    db.put("grid", pa.table({**grid, "horizon": [steps] * len(at), "window_end": [steps * length] * len(at)}))
    charted: list[Charted] = [*settings.covariates, settings.outcome]
    look_backs = [round(settings.look_back(one) * HOUR) for one in charted]
    db.put(
        "asked",
        pa.table(
            {
                "role": ["state"] * len(settings.covariates) + ["outcome"],
                "name": [one.name for one in charted],
                "lowest": [one.plausible[0] for one in charted],
                "highest": [one.plausible[1] for one in charted],
                "look_back": look_backs,
                "step_length": [length] * len(charted),
                "window_end": [steps * length] * len(charted),
            }
        ),
    )
    # What sources have to read: a covariate that is the outcome too is read once, for the longer look-back.
    longest: dict[str, int] = {}
    for one, look_back in zip(charted, look_backs, strict=True):
        longest[one.name] = max(look_back, longest.get(one.name, 0))
    windows = {"look_back": list(longest.values()), "window_end": [steps * length] * len(longest)}
    db.put("charted", pa.table({"name": list(longest), **windows}))
    db.put("dose_names", pa.table({"name": list(settings.dose.names)}))
    db.put("chosen", pa.table({"largest_dose": [settings.dose.largest], "window_end": [steps * length]}))


def _pivot(names: list[str]) -> str:
    # Names of covariates are small letters, digits and underscores: the settings take no others.
    columns = ", ".join(f"max(CASE WHEN name = '{name}' THEN value END) AS {quoted(STATE + name)}" for name in names)
    return (
        f"SELECT stay_id AS stay_of_state, step AS step_of_state, {columns} FROM readings "
        "WHERE role = 'state' AND fresh = 1 GROUP BY stay_id, step"
    )


def _count(stays: pa.ChunkedArray) -> int:
    return int(pc.count_distinct(stays).as_py())


def _of_one_site(rows: pa.Table, site: str | None) -> pa.Table:
    if site is None:
        return rows
    return rows.set_column(rows.column_names.index("site"), "site", pa.array([site] * rows.num_rows, pa.string()))


def _counted(db: Database, source: Source, rows: pa.Table) -> Counted:
    """What was read for the stays of `rows`."""
    db.put("table_stays", pa.table({"stay_id": pc.unique(rows["stay_id"])}))
    found = db.arrow(statement("dropped")).to_pylist()
    states, outcomes, doses = (
        {r["name"]: Counts(int(r["charted"]), int(r["dropped"])) for r in found if r["kind"] == kind}
        for kind in ("state", "outcome", "dose")
    )
    outcome = next(iter(outcomes.values()), Counts())
    return Counted(states, outcome, doses, db.arrow(source.left_out) if source.left_out else NONE_LEFT_OUT)


def _refuse_absent(before: pa.Table, rows: pa.Table, settings: Extraction, source: Source, counted: Counted) -> None:
    """Refuse a table with an empty column. A cohort that is empty for want of the outcome is told so here."""
    names = absent(rows if rows.num_rows else before, settings, counted) if before.num_rows else []
    if names:
        raise refusal(names, settings, counted, {name: source.hint(name) for name in names})


def _with_outcome(rows: pa.Table, settings: Extraction, flow: Flow) -> tuple[pa.Table, Flow]:
    """With the column `reward`; stays whose outcome is not known at time zero leave, unless a value is agreed for them.

    What comes later removes nobody: it would be asked more often of those who live than of those who die.
    """
    if settings.outcome.unmeasured is None:
        known = pc.and_(pc.equal(rows["step"], 0), pc.is_valid(rows["outcome_before"]))
        rows = rows.filter(pc.is_in(rows["stay_id"], pc.unique(rows.filter(known)["stay_id"])))
        flow = flow.then(f"{settings.outcome.name} known when step 0 begins", left=_count(rows["stay_id"]))
    return rows.append_column("reward", pa.array(rewards(rows, settings.outcome), from_pandas=True)), flow


def _carried(rows: pa.Table, settings: Extraction) -> frozenset[str]:
    """The stays whose outcome is older than its look-back at the end of some step, and no value is agreed instead."""
    if settings.outcome.unmeasured is not None:
        return frozenset()
    old = pc.and_(pc.is_null(rows["outcome_after"]), pc.equal(rows["died"], 0))
    return frozenset(rows.filter(old)["patient"].to_pylist())


def rewards(rows: pa.Table, outcome: Outcome) -> Array:
    """The reward of each row on [0, 1]; NaN where the outcome is not known.

    level: (high − x)/(high − low) of the value x at the step's end; change: ½ + (x₀ − x)/2(high − low). Both are
    clipped, and mirrored where high values are the better ones. A step in which the patient died is worth 0.

    x is the last value. Where a value is agreed for what nobody measured, it takes the place of a level older than its
    look-back. A change goes by the last value all the same: not to measure would look like recovery.
    """
    low, high = outcome.range
    replaced = outcome.reward == "level" and outcome.unmeasured is not None
    names = ("outcome_before", "outcome_after") if replaced else ("last_before", "last_after")
    before, after = (_numbers(rows[name], outcome.unmeasured) for name in names)
    worth = (high - after) / (high - low) if outcome.reward == "level" else 0.5 + (before - after) / (2 * (high - low))
    worth = worth if outcome.better == "low" else 1 - worth
    died = rows["died"].to_numpy() == 1
    mapped: Array = np.where(died, 0.0, np.clip(worth, 0.0, 1.0))
    return mapped


def _numbers(column: pa.ChunkedArray, missing: float | None) -> Array:
    filled = pc.fill_null(column.cast(pa.float64()), np.nan if missing is None else missing)
    numbers: Array = filled.to_numpy()
    return numbers


def _refuse_small(rows: pa.Table, flow: Flow, sites: int) -> None:
    if rows.num_rows == 0:
        most = max(flow.removals, key=lambda one: one.removed)
        raise EmptyCohort(
            f"No stay is left of {flow.found:,} {flow.what}. Most were removed by the rule “{most.rule}” "
            f"({most.removed:,}). Nothing was written. Look at the settings (--print-settings), or at the source."
        )
    found = pc.unique(rows["site"])
    if len(found) < sites:
        raise OneSite(
            f"All {flow.left:,} stays of the cohort are of one site, and a study is about several. Nothing was "
            "written. Where this table is one hospital's own part, say so: --one-site, or --site NAME."
        )


def _site_values(db: Database, settings: Extraction) -> dict[str, dict[str, float]]:
    names = [covariate.name for covariate in settings.site_covariates]
    if not names:
        return {}
    columns = ", ".join(f"max({quoted(name)}) AS {quoted(name)}" for name in names)
    found = db.arrow(f"SELECT CAST(site AS VARCHAR) AS site, {columns} FROM stays GROUP BY site").to_pylist()
    unknown = sorted((name, row["site"]) for name in names for row in found if row[name] is None)
    if unknown:
        name, site = unknown[0]
        raise NoValues(
            f"The site covariate {name} is not known for {site}: none of its stays has an end. Nothing was written. "
            "Complete the times of stays, or leave the covariate out: site_covariates = [] in the settings."
        )
    return {row["site"]: row for row in found}


def _columns(rows: pa.Table, settings: Extraction, by_site: dict[str, dict[str, float]]) -> pa.Table:
    volume = _numbers(rows["volume"], 0.0)
    sites = rows["site"].combine_chunks().dictionary_encode()
    codes = sites.indices.to_numpy()
    columns: dict[str, Any] = {name: rows[name] for name in ("site", "patient", "person")}
    columns["step"] = rows["step"].cast(pa.int64())
    for covariate in settings.covariates:
        columns[covariate.name] = rows[STATE + covariate.name].cast(pa.float64())
    for covariate in settings.covariates:
        columns[f"{covariate.name}{MISSING}"] = pc.is_null(columns[covariate.name]).cast(pa.int64())
    for site_covariate in settings.site_covariates:
        values = [float(by_site[site][site_covariate.name]) for site in sites.dictionary.to_pylist()]
        columns[site_covariate.name] = np.array(values)[codes]
    columns["dose"] = volume
    columns["action"] = np.searchsorted(settings.dose.cuts, volume, side="left").astype(np.int64)
    columns["reward"] = rows["reward"]
    columns[f"{settings.outcome.name}{MEASURED}"] = rows["measured"].cast(pa.int64())
    columns["end"] = rows["ending"].cast(pa.string())
    return pa.table(columns).sort_by([("site", "ascending"), ("patient", "ascending"), ("step", "ascending")])


def count_missing(table: pa.Table, settings: Extraction) -> pa.Table:
    """One row a site, step and covariate: rows, and how many of them lack it.

    And one for the reward: how many rows have an outcome that was not measured within the step.
    """
    gaps = {f"{one.name}{MISSING}": table[f"{one.name}{MISSING}"] for one in settings.covariates}
    gaps[f"reward{MISSING}"] = pc.subtract(1, table[f"{settings.outcome.name}{MEASURED}"])
    counted = pa.table({**{key: table[key] for key in ("site", "step", "patient")}, **gaps})
    found = counted.group_by(["site", "step"]).aggregate([("patient", "count"), *((gap, "sum") for gap in gaps)])
    parts = [
        pa.table(
            {
                "site": found["site"],
                "step": found["step"],
                "column": pa.array([gap.removesuffix(MISSING)] * found.num_rows),
                "rows": found["patient_count"],
                "missing": found[f"{gap}_sum"],
            }
        )
        for gap in gaps
    ]
    return pa.concat_tables(parts).sort_by([(key, "ascending") for key in ("site", "step", "column")])
