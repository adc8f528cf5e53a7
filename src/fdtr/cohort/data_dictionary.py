"""Data dictionary: what each column of a table means, where it was read, and what was missing or dropped.

Columns without any value are refused, sparse ones noted, gaps counted by site and step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fdtr.cohort.extraction_settings import MEASURED, MISSING, Charted, ExtractionSettings
from fdtr.cohort.settings_toml import exact
from fdtr.errors import UnsuitableTables

STATE = "state_"
"""Prefix of covariates in the working tables, so that a covariate may have the name of a working column."""

MOSTLY = 0.9
"""A covariate with a larger share of missing rows is noted."""


@dataclass(frozen=True)
class Counts:
    """Values of a charted quantity or of doses that were read, and how many of them were not plausible."""

    charted: int = 0
    dropped: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class SourceCounts:
    """Counts of what was read for some stays, by role ("state", "outcome" or "dose") and name.

    `left_out` counts entries that could not be used (columns reason, name, entries), if the source counts them.
    """

    by_role: Mapping[tuple[str, str], Counts]
    left_out: pa.Table | None

    def of(self, role: str, *names: str) -> Counts:
        """The counts of one name, or of several together."""
        counts = [self.by_role.get((role, name), Counts()) for name in set(names)]
        return Counts(sum(count.charted for count in counts), sum(count.dropped for count in counts))


@dataclass(frozen=True)
class Entry:
    """A column of the table. `rows` and `missing` count rows; `charted` and `dropped` count charted values."""

    column: str
    meaning: str
    unit: str = ""
    source: str = ""
    plausible: str = ""
    range: str = ""
    rows: int | None = None
    missing: int | None = None
    charted: int | None = None
    dropped: int | None = None


HEADINGS = {
    "source": "where it was read",
    "plausible": "values outside are errors of charting, and dropped",
    "range": "public bounds of the study; values outside are clipped there when it is run",
    "rows": "rows of the table",
    "missing": "how many of these rows have no value; of the reward, one that was not measured within the step",
    "charted": "values that were read for the stays of the table, near enough in time to count",
    "dropped": "how many of these values were not plausible, or in no known unit",
}


def describe(
    settings: ExtractionSettings, origins: Mapping[str, str], table: pa.Table, counts: SourceCounts
) -> tuple[Entry, ...]:
    """One entry a column of `table`. `origins` says where columns were read; `counts` has the charted values."""
    covariates = settings.covariates
    entries = [
        Entry("site", "where the stay began"),
        Entry("patient", "the stay: one trajectory"),
        Entry("person", f"the person; {_repeats(table)}"),
        Entry("step", f"number of the step, from 0; each has {settings.step_hours:g} hours from {settings.zero}"),
        *(_state(c, settings, table, counts.of("state", c.name)) for c in covariates),
        *(Entry(f"{c.name}{MISSING}", f"1 where {c.name} is missing") for c in covariates),
        *(Entry(c.name, c.meaning, c.unit, range=_bounds(c.range)) for c in settings.site_covariates),
        _dose(settings, counts.of("dose", *settings.dose.names)),
        Entry("action", f"level of the dose: how many of {', '.join(map(exact, settings.dose.cuts))} ml it exceeds"),
        replace(
            _reward(settings, table, counts.of("outcome", settings.outcome.name)),
            source=origins.get(settings.outcome.name, ""),
        ),
        Entry(
            f"{settings.outcome.name}{MEASURED}",
            f"1 where {settings.outcome.name} was measured in the step; else the reward is that of "
            f"{_stand_in(settings)}",
        ),
        Entry("end", "how a stay ended that has fewer steps than the study, on its last row: death or discharge"),
    ]
    return tuple(replace(e, source=e.source or origins.get(e.column, ""), rows=table.num_rows) for e in entries)


def _repeats(table: pa.Table) -> str:
    stays, persons = (len(pc.unique(table[name])) for name in ("patient", "person"))
    return "some have several stays" if persons < stays else "each has one stay here"


def _bounds(pair: tuple[float, float]) -> str:
    return f"{exact(pair[0])} to {exact(pair[1])}"


def _state(covariate: Charted, settings: ExtractionSettings, table: pa.Table, counts: Counts) -> Entry:
    return Entry(
        covariate.name,
        f"{covariate.meaning}, last value before the step, at most {settings.look_back(covariate):g} hours old",
        covariate.unit,
        plausible=_bounds(covariate.plausible),
        range=_bounds(covariate.range),
        missing=table[covariate.name].null_count,
        **asdict(counts),
    )


def _dose(settings: ExtractionSettings, counts: Counts) -> Entry:
    return Entry(
        "dose",
        f"volume given in the step: {', '.join(settings.dose.names)}",
        "ml",
        plausible=f"above 0, up to {exact(settings.dose.largest)} a dose, in ml or litres",
        **asdict(counts),
    )


def _stand_in(settings: ExtractionSettings) -> str:
    """What is taken for an outcome that was not measured within its step."""
    outcome = settings.outcome
    if outcome.unmeasured is None:
        return "the last value, however old"
    if outcome.reward == "change":
        return f"the last value, or of {exact(outcome.unmeasured)} {outcome.unit} before the first"
    hours = f"{settings.look_back(outcome):g} hours"
    return f"the last value up to {hours} old, or of {exact(outcome.unmeasured)} {outcome.unit}"


def _reward(settings: ExtractionSettings, table: pa.Table, counts: Counts) -> Entry:
    outcome = settings.outcome
    low, high = outcome.range
    kind = "at the step's end" if outcome.reward == "level" else "by how much it changed in the step"
    return Entry(
        "reward",
        f"{outcome.meaning} {kind}, mapped from {exact(low)} to {exact(high)} {outcome.unit} onto [0, 1]; "
        f"{outcome.better} is better; 0 where the patient died in the step",
        plausible=_bounds(outcome.plausible),
        range=_bounds((0.0, 1.0)),
        missing=table.num_rows - pc.sum(table[f"{outcome.name}{MEASURED}"]).as_py(),
        **asdict(counts),
    )


def as_markdown(entries: tuple[Entry, ...], heading: str) -> str:
    """The dictionary as a page in Markdown. Columns without any content are left out."""
    rows = [asdict(entry) for entry in entries]
    names = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    lines = [f"# {heading}", "", f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {' | '.join(_cell(row[name]) for name in names)} |" for row in rows]
    lines += ["", *(f"* **{name}**: {HEADINGS[name]}." for name in names if name in HEADINGS)]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


def empty_columns(rows: pa.Table, settings: ExtractionSettings, counts: SourceCounts) -> list[str]:
    """Covariates, outcome and kinds of dose without a usable value, except those that the settings let be absent."""
    columns = {covariate.name: STATE + covariate.name for covariate in settings.covariates}
    empty = [name for name, column in columns.items() if rows[column].null_count == rows.num_rows]
    empty += [settings.outcome.name] if rows["last_after"].null_count == rows.num_rows else []
    doses = {name: counts.of("dose", name) for name in settings.dose.names}
    empty += [name for name, read in doses.items() if read.charted == read.dropped]
    return [name for name in dict.fromkeys(empty) if name not in settings.may_be_absent]


def no_values(
    names: Sequence[str], settings: ExtractionSettings, counts: SourceCounts, hints: Mapping[str, str]
) -> UnsuitableTables:
    """The refusal of columns without a value, with one line a name; `hints` is what the source adds to it."""
    lines = [f"  {name}: {'; '.join(_reasons(name, settings, counts, hints))}" for name in names]
    listed = ", ".join(f'"{name}"' for name in names)
    first = f"Without a single usable value in the whole cohort: {', '.join(names)}."
    last = (
        "Nothing was written. Correct the settings or the source; where it is meant to be so, write "
        f"may_be_absent = [{listed}] into the settings."
    )
    return UnsuitableTables("\n".join([first, *lines, last]))


def _reasons(name: str, settings: ExtractionSettings, counts: SourceCounts, hints: Mapping[str, str]) -> list[str]:
    covariates = {covariate.name for covariate in settings.covariates}
    reasons = []
    for quantity in settings.charted:
        if quantity.name == name:
            (low, high), read = quantity.plausible, counts.of("state" if name in covariates else "outcome", name)
            reasons.append(
                f"values outside {low:g} to {high:g} {quantity.unit}: {read.dropped:,} of {read.charted:,}"
                if read.charted
                else "no value within its look-back"
            )
    if name in settings.dose.names:
        largest, read = settings.dose.largest, counts.of("dose", name)
        reasons.append(
            f"doses of no known unit, or not above 0 and up to {largest:g} ml: {read.dropped:,} of {read.charted:,}"
            if read.charted
            else "no dose within the steps"
        )
    left_out = counts.left_out.to_pylist() if counts.left_out is not None else []
    reasons += [f"{row['reason']}: {row['entries']:,}" for row in left_out if row["name"] == name]
    return reasons + ([hints[name]] if hints.get(name) else [])


def sparse_notes(table: pa.Table, settings: ExtractionSettings) -> list[str]:
    """One sentence for each covariate that most rows lack."""
    shares = {covariate.name: table[covariate.name].null_count / table.num_rows for covariate in settings.covariates}
    return [
        f"{name} is missing in {share:.1%} of rows, and a study fills what is missing with a constant: look at its "
        "source in dictionary.md, or drop it."
        for name, share in shares.items()
        if share > MOSTLY
    ]


def count_missing(table: pa.Table, settings: ExtractionSettings) -> pa.Table:
    """One row a site, step and column: how many rows there are, and how many of them lack a value.

    The columns are the covariates and the reward. The reward lacks a value where the outcome was not measured within
    the step.
    """
    gaps = {covariate.name: table[f"{covariate.name}{MISSING}"] for covariate in settings.covariates}
    gaps["reward"] = pc.subtract(1, table[f"{settings.outcome.name}{MEASURED}"])
    keys = ["site", "step", "column"]
    parts = [
        table.select(["site", "step"])
        .append_column("column", pa.repeat(name, table.num_rows))
        .append_column("gap", gap)
        for name, gap in gaps.items()
    ]
    sums = pa.concat_tables(parts).group_by(keys).aggregate([("gap", "count"), ("gap", "sum")])
    return (
        sums.select([*keys, "gap_count", "gap_sum"])
        .rename_columns([*keys, "rows", "missing"])
        .sort_by([(key, "ascending") for key in keys])
    )
