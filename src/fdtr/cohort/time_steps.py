"""From stays, measurements and doses to the long table: one row a stay and step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fdtr.cohort.cohort_flow import Flow
from fdtr.cohort.data_dictionary import (
    STATE,
    Counts,
    Entry,
    SourceCounts,
    count_missing,
    describe,
    empty_columns,
    no_values,
    sparse_notes,
)
from fdtr.cohort.databases import Database, quoted, read_sql
from fdtr.cohort.extraction_settings import MEASURED, MISSING, Charted, ExtractionSettings, Outcome
from fdtr.errors import EmptyCohort, UnsuitableTables
from fdtr.progress import Progress, ignore_progress

Array = NDArray[np.float64]

HOUR = 3_600_000_000
"""In microseconds, the unit of time of the SQL files: whole numbers, in which both engines are exact."""

RELATIONS = ("observed", "presence", "readings", "timed_doses", "volumes")
"""Made in this order, each by the SQL file of its name."""


@dataclass(frozen=True)
class Source:
    """How a source made the relations `stays`, `measurements` and `doses`.

    `flow` counts the stays up to here. `origins` says where covariates, the outcome and "dose" were read, such as
    "chartevents 220179, 220050". `left_out` is SQL that counts entries of `table_stays` that no relation holds: reason,
    name, entries. `hint` says what the source holds of a name that has no usable value. `notes` are sentences for the
    user. Sites with fewer than `smallest_site` stays are left out of the table.
    """

    flow: Flow
    origins: Mapping[str, str] = field(default_factory=dict)
    left_out: str | None = None
    hint: Callable[[str], str] = lambda _: ""
    notes: tuple[str, ...] = ()
    smallest_site: int = 1


@dataclass(frozen=True, eq=False, repr=False)
class ExtractedTable:
    """The long `table`, with its settings and everything that describes it.

    Columns: site, patient, person, step, each covariate, each covariate's `_missing` indicator, site covariates, dose
    (ml), action, reward, the outcome's `_measured` indicator, end. `missing` counts gaps by site, step and column.
    `left_out` counts entries that could not be used, by reason and name; it is None if the source does not count them.
    `notes` are sentences that a person must read. `carried` holds each `patient` whose outcome was carried forward
    beyond its look-back at some step.
    """

    table: pa.Table
    settings: ExtractionSettings
    flow: Flow
    dictionary: tuple[Entry, ...]
    missing: pa.Table
    left_out: pa.Table | None
    notes: tuple[str, ...] = ()
    carried: frozenset[str] = frozenset()

    @property
    def has_repeated_persons(self) -> bool:
        """Whether some person has several stays."""
        return _distinct(self.table["person"]) < _distinct(self.table["patient"])


def make_table(
    db: Database, settings: ExtractionSettings, source: Source, progress: Progress = ignore_progress
) -> ExtractedTable:
    """The long table from the relations `stays`, `measurements` and `doses` of `db`."""
    total = len(RELATIONS) + 2
    values_by_site = site_values(db, settings)  # refused before the work, not after it
    _put_settings(db, settings)
    for number, relation in enumerate(RELATIONS):
        progress(relation.replace("_", " "), number, total)
        db.make(relation, read_sql(relation))
    progress("steps", len(RELATIONS), total)
    db.make("states", _pivot([covariate.name for covariate in settings.covariates]))
    present = _of_one_site(db.arrow(read_sql("steps")), settings.options.site)
    flow = source.flow.then("there when step 0 begins", left=_distinct(present["stay_id"]))
    rows, flow = _with_outcome(present, settings, flow)
    rows, flow = _of_large_sites(rows, flow, source.smallest_site)
    progress("counts", len(RELATIONS) + 1, total)
    # If no stay is left, for want of the outcome say, the columns of all present stays tell why.
    examined = rows if rows.num_rows else present
    counts = _count_source(db, source, examined)
    empty = empty_columns(examined, settings, counts) if examined.num_rows else []
    if empty:
        raise no_values(empty, settings, counts, {name: source.hint(name) for name in empty})
    _refuse_small(rows, flow, settings.fewest_sites)
    table = _columns(rows, settings, values_by_site)
    progress("table", total, total)
    return ExtractedTable(
        table,
        settings,
        flow,
        describe(settings, source.origins, table, counts),
        count_missing(table, settings),
        counts.left_out,
        (*source.notes, *sparse_notes(table, settings)),
        _carried(rows, settings),
    )


def _put_settings(db: Database, settings: ExtractionSettings) -> None:
    """Load the settings as small relations, which the SQL files join with."""
    length, steps = round(settings.step_hours * HOUR), settings.steps
    begins = np.arange(steps + 1) * length
    grid = {"step": np.arange(steps + 1), "begins": begins, "ends": begins + length}
    db.put("grid", pa.table({**grid, "horizon": [steps] * (steps + 1), "window_end": [steps * length] * (steps + 1)}))
    charted: list[Charted] = [*settings.covariates, settings.outcome]
    db.put(
        "quantities",
        pa.table(
            {
                "role": ["state"] * len(settings.covariates) + ["outcome"],
                "name": [quantity.name for quantity in charted],
                "lowest": [quantity.plausible[0] for quantity in charted],
                "highest": [quantity.plausible[1] for quantity in charted],
                "look_back": [round(settings.look_back(quantity) * HOUR) for quantity in charted],
                "step_length": [length] * len(charted),
                "window_end": [steps * length] * len(charted),
            }
        ),
    )
    db.put("dose_names", pa.table({"name": list(settings.dose.names)}))
    limits = {"largest_dose": [settings.dose.largest], "step_length": [length], "window_end": [steps * length]}
    db.put("limits", pa.table(limits))


def _pivot(names: list[str]) -> str:
    # Names of covariates are lower-case letters, digits and underscores: the settings accept no others.
    columns = ", ".join(f"max(CASE WHEN name = '{name}' THEN value END) AS {quoted(STATE + name)}" for name in names)
    return (
        f"SELECT stay_id AS stay_of_state, step AS step_of_state, {columns} FROM readings "
        "WHERE role = 'state' AND fresh = 1 GROUP BY stay_id, step"
    )


def _distinct(column: pa.ChunkedArray) -> int:
    return int(pc.count_distinct(column).as_py())


def _of_one_site(rows: pa.Table, site: str | None) -> pa.Table:
    if site is None:
        return rows
    return rows.set_column(rows.column_names.index("site"), "site", pa.array([site] * rows.num_rows, pa.string()))


def _count_source(db: Database, source: Source, rows: pa.Table) -> SourceCounts:
    """Counts of what was read for the stays of `rows`."""
    db.put("table_stays", pa.table({"stay_id": pc.unique(rows["stay_id"])}))
    rows_read = db.arrow(read_sql("dropped")).to_pylist()
    counts = {(row["kind"], row["name"]): Counts(int(row["charted"]), int(row["dropped"])) for row in rows_read}
    return SourceCounts(counts, db.arrow(source.left_out) if source.left_out else None)


def _with_outcome(rows: pa.Table, settings: ExtractionSettings, flow: Flow) -> tuple[pa.Table, Flow]:
    """`rows` with the column `reward`, without stays whose outcome is unknown at time zero.

    If a value is agreed for an unmeasured outcome, no stay is removed. Later measurements never decide who stays: they
    are more frequent among patients who live.
    """
    if settings.outcome.unmeasured is None:
        known = pc.and_(pc.equal(rows["step"], 0), pc.is_valid(rows["outcome_before"]))
        rows = rows.filter(pc.is_in(rows["stay_id"], pc.unique(rows.filter(known)["stay_id"])))
        flow = flow.then(f"{settings.outcome.name} known when step 0 begins", left=_distinct(rows["stay_id"]))
    return rows.append_column("reward", pa.array(rewards(rows, settings.outcome), from_pandas=True)), flow


def _of_large_sites(rows: pa.Table, flow: Flow, smallest_site: int) -> tuple[pa.Table, Flow]:
    """The `rows` of sites with at least `smallest_site` stays. This rule comes last: other rules make sites smaller."""
    if smallest_site == 1:
        return rows, flow
    stays = rows.group_by("site").aggregate([("stay_id", "count_distinct")])
    large = stays.filter(pc.greater_equal(stays["stay_id_count_distinct"], smallest_site))["site"]
    rows = rows.filter(pc.is_in(rows["site"], large.combine_chunks()))
    return rows, flow.then(f"at a site with {smallest_site} of them or more", left=_distinct(rows["stay_id"]))


def _carried(rows: pa.Table, settings: ExtractionSettings) -> frozenset[str]:
    """Each patient whose outcome is older than its look-back at some step's end, if no value is agreed instead."""
    if settings.outcome.unmeasured is not None:
        return frozenset()
    old = pc.and_(pc.is_null(rows["outcome_after"]), pc.equal(rows["died"], 0))
    return frozenset(rows.filter(old)["patient"].to_pylist())


def rewards(rows: pa.Table, outcome: Outcome) -> Array:
    """The reward of each row on [0, 1]; NaN where the outcome is not known.

    level: (high − x)/(high − low) of the value x at the step's end; change: ½ + (x₀ − x)/2(high − low). Both are
    clipped, and mirrored if high values are better. A step in which the patient died is worth 0.

    x is the last value. A value agreed for an unmeasured outcome replaces a level that is older than its look-back. It
    does not enter a change: not to measure would look like recovery.
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
        most = max(flow.removals, key=lambda removal: removal.removed)
        raise EmptyCohort(
            f"No stay is left of {flow.found:,} {flow.what}. Most were removed by the rule “{most.rule}” "
            f"({most.removed:,}). Nothing was written. Look at the settings (--print-settings), or at the source."
        )
    if _distinct(rows["site"]) < sites:
        raise UnsuitableTables(
            f"All {flow.left:,} stays of the cohort are of one site, and a study is about several. Nothing was "
            "written. Where this table is one hospital's own part, say so: --one-site, or --site NAME."
        )


def site_values(
    db: Database, settings: ExtractionSettings, remedy: str = "Complete the times of stays"
) -> dict[str, dict[str, float]]:
    """The site covariates of each site, from the relation `stays`. Refuse a site where one is not known."""
    names = [covariate.name for covariate in settings.site_covariates]
    if not names:
        return {}
    columns = ", ".join(f"max({quoted(name)}) AS {quoted(name)}" for name in names)
    sites = db.arrow(f"SELECT CAST(site AS VARCHAR) AS site, {columns} FROM stays GROUP BY site").to_pylist()
    unknown = sorted((name, row["site"]) for name in names for row in sites if row[name] is None)
    if unknown:
        name, site = unknown[0]
        raise UnsuitableTables(
            f"The site covariate {name} is not known for {site}: none of its stays has an end. Nothing was written. "
            f"{remedy}, or leave the covariate out: site_covariates = [] in the settings."
        )
    return {row["site"]: row for row in sites}


def _columns(rows: pa.Table, settings: ExtractionSettings, by_site: dict[str, dict[str, float]]) -> pa.Table:
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


def complete_cases(extracted: ExtractedTable) -> ExtractedTable:
    """Only stays with all steps, all covariates and the outcome at every step; the flow counts the others.

    A patient with all steps was alive at the last one. To choose complete cases therefore looks ahead, and what is
    learnt from them holds for survivors. The paper's cohort is of this kind; use it as a sensitivity analysis beside
    the whole cohort. The table has no column `end`, since no stay ends early.
    Raises EmptyCohort if no stay is complete.
    """
    settings, table = extracted.settings, extracted.table
    lengths = table.group_by("patient").aggregate([("step", "count")])
    short = lengths.filter(pc.less(lengths["step_count"], settings.steps))["patient"]
    table = _without(table, short)
    flow = extracted.flow.then(f"there for all {settings.steps} steps", left=table.num_rows // settings.steps)
    if settings.outcome.unmeasured is None:
        table = _without(table, pa.array(sorted(extracted.carried), pa.string()))
        rule = f"{settings.outcome.name} known at the end of every step"
        flow = flow.then(rule, left=table.num_rows // settings.steps)
    lacking = np.zeros(table.num_rows, bool)
    for covariate in settings.covariates:
        lacking |= table[f"{covariate.name}{MISSING}"].to_numpy() > 0
    table = _without(table, pc.unique(table.filter(pa.array(lacking))["patient"]))
    flow = flow.then("every covariate known at every step", left=table.num_rows // settings.steps)
    if table.num_rows == 0:
        most = max(flow.removals[len(extracted.flow.removals) :], key=lambda removal: removal.removed)
        raise EmptyCohort(
            f"No stay is a complete case. Most of {extracted.flow.left:,} were removed by the rule “{most.rule}” "
            f"({most.removed:,}). Where complete cases are wanted, leave out the covariates that missing.csv "
            "shows to be rare."
        )
    return replace(extracted, table=table.drop_columns(["end"]), flow=flow, missing=count_missing(table, settings))


def _without(table: pa.Table, patients: pa.Array) -> pa.Table:
    return table.filter(pc.invert(pc.is_in(table["patient"], pa.array(patients.to_pylist(), pa.string()))))
