"""Values that a table lacks: empty columns are refused, sparse ones noted, gaps counted by site and step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from fdtr.cohort.extraction_settings import MEASURED, MISSING, Charted, ExtractionSettings
from fdtr.errors import UnsuitableTables

STATE = "state_"
"""Prefix of covariates in the working tables, so that a covariate may have the name of a working column."""

MOSTLY = 0.9
"""A covariate with a larger share of missing rows is noted."""


@dataclass(frozen=True)
class Counts:
    """Values of a charted quantity or a kind of dose that were read, and how many of them were not plausible."""

    charted: int = 0
    dropped: int = 0

    @property
    def usable(self) -> int:
        """Values that are plausible."""
        return self.charted - self.dropped


@dataclass(frozen=True, eq=False, repr=False)
class SourceCounts:
    """Counts of what was read for some stays: each covariate, the outcome and each kind of dose.

    `left_out` counts entries that could not be used (columns reason, name, entries), if the source counts them.
    """

    states: Mapping[str, Counts]
    outcome: Counts
    doses: Mapping[str, Counts]
    left_out: pa.Table | None

    @property
    def dose(self) -> Counts:
        """All kinds of dose together."""
        kinds = self.doses.values()
        return Counts(sum(kind.charted for kind in kinds), sum(kind.dropped for kind in kinds))


def empty_columns(rows: pa.Table, settings: ExtractionSettings, counts: SourceCounts) -> list[str]:
    """Covariates, outcome and kinds of dose without a usable value, except those that the settings let be absent."""
    columns = {covariate.name: STATE + covariate.name for covariate in settings.covariates}
    empty = [name for name, column in columns.items() if rows[column].null_count == rows.num_rows]
    empty += [settings.outcome.name] if rows["last_after"].null_count == rows.num_rows else []
    empty += [name for name in settings.dose.names if not counts.doses.get(name, Counts()).usable]
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
    charted = {quantity.name: quantity for quantity in settings.charted}
    reasons = []
    if name in charted:
        covariates = {covariate.name for covariate in settings.covariates}
        values = counts.states.get(name, Counts()) if name in covariates else counts.outcome
        reasons.append(_chart_reason(charted[name], values))
    if name in settings.dose.names:
        reasons.append(_dose_reason(settings.dose.largest, counts.doses.get(name, Counts())))
    left_out = counts.left_out.to_pylist() if counts.left_out is not None else []
    reasons += [f"{row['reason']}: {row['entries']:,}" for row in left_out if row["name"] == name]
    return reasons + ([hints[name]] if hints.get(name) else [])


def _chart_reason(quantity: Charted, counts: Counts) -> str:
    low, high = quantity.plausible
    if not counts.charted:
        return "no value within its look-back"
    return f"values outside {low:g} to {high:g} {quantity.unit}: {counts.dropped:,} of {counts.charted:,}"


def _dose_reason(largest: float, counts: Counts) -> str:
    if not counts.charted:
        return "no dose within the steps"
    return f"doses of no known unit, or not above 0 and up to {largest:g} ml: {counts.dropped:,} of {counts.charted:,}"


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
    names = [covariate.name for covariate in settings.covariates]
    gaps = {name: table[f"{name}{MISSING}"] for name in names}
    gaps["reward"] = pc.subtract(1, table[f"{settings.outcome.name}{MEASURED}"])
    keys = {key: table[key] for key in ("site", "step", "patient")}
    marked = pa.table({**keys, **{f"gap_{name}": gap for name, gap in gaps.items()}})
    sums = marked.group_by(["site", "step"]).aggregate([("patient", "count"), *((f"gap_{n}", "sum") for n in gaps)])
    parts = [
        pa.table(
            {
                "site": sums["site"],
                "step": sums["step"],
                "column": pa.array([name] * sums.num_rows),
                "rows": sums["patient_count"],
                "missing": sums[f"gap_{name}_sum"],
            }
        )
        for name in gaps
    ]
    return pa.concat_tables(parts).sort_by([(key, "ascending") for key in ("site", "step", "column")])
