"""What a table lacks altogether, or nearly so: refused or noted, with what was found instead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from fdtr.cohort.settings import Charted, Extraction
from fdtr.errors import NoValues

STATE = "state_"
"""What the working tables put before the name of a covariate, so that it may be called as one of their own columns."""

MOSTLY = 0.9
"""Above this share of missing rows a covariate is noted."""


@dataclass(frozen=True)
class Counts:
    """Of a charted quantity or a kind of dose: values that were read, and how many of them were not plausible."""

    charted: int = 0
    dropped: int = 0

    @property
    def usable(self) -> int:
        """Values that could count."""
        return self.charted - self.dropped


@dataclass(frozen=True, eq=False, repr=False)
class Counted:
    """What was read for some stays: of each covariate, the outcome and each kind of dose; `left_out` as reasons."""

    states: Mapping[str, Counts]
    outcome: Counts
    doses: Mapping[str, Counts]
    left_out: pa.Table

    @property
    def dose(self) -> Counts:
        """All kinds of dose together."""
        kinds = self.doses.values()
        return Counts(sum(one.charted for one in kinds), sum(one.dropped for one in kinds))


def absent(rows: pa.Table, settings: Extraction, counted: Counted) -> list[str]:
    """Names of covariates, of the outcome and of kinds of dose without any usable value, unless that may be so."""
    outcome = settings.outcome.name
    columns = [*((one.name, STATE + one.name) for one in settings.covariates), (outcome, "last_after")]
    empty = [name for name, column in columns if rows[column].null_count == rows.num_rows]
    empty += [name for name in settings.dose.names if not counted.doses.get(name, Counts()).usable]
    return [name for name in dict.fromkeys(empty) if name not in settings.may_be_absent]


def refusal(names: Sequence[str], settings: Extraction, counted: Counted, hints: Mapping[str, str]) -> NoValues:
    """A line for each name: what was found instead. `hints` are what the source knows more."""
    lines = [f"  {name}: {'; '.join(_found(name, settings, counted, hints))}" for name in names]
    listed = ", ".join(f'"{name}"' for name in names)
    first = f"Without a single usable value in the whole cohort: {', '.join(names)}."
    last = (
        "Nothing was written. Correct the settings or the source; where it is meant to be so, write "
        f"may_be_absent = [{listed}] into the settings."
    )
    return NoValues("\n".join([first, *lines, last]))


def _found(name: str, settings: Extraction, counted: Counted, hints: Mapping[str, str]) -> list[str]:
    charted = {one.name: one for one in settings.charted}
    parts = [_of_chart(charted[name], _counts(name, settings, counted))] if name in charted else []
    parts += [_of_dose(settings, counted.doses.get(name, Counts()))] if name in settings.dose.names else []
    parts += [f"{r['reason']}: {r['entries']:,}" for r in counted.left_out.to_pylist() if r["name"] == name]
    return parts + ([hints[name]] if hints.get(name) else [])


def _counts(name: str, settings: Extraction, counted: Counted) -> Counts:
    covariates = {one.name for one in settings.covariates}
    return counted.states.get(name, Counts()) if name in covariates else counted.outcome


def _of_chart(one: Charted, counts: Counts) -> str:
    low, high = one.plausible
    if not counts.charted:
        return "no value within its look-back"
    return f"values outside {low:g} to {high:g} {one.unit}: {counts.dropped:,} of {counts.charted:,}"


def _of_dose(settings: Extraction, counts: Counts) -> str:
    if not counts.charted:
        return "no dose within the steps"
    largest = settings.dose.largest
    return f"doses of no known unit, or not above 0 and up to {largest:g} ml: {counts.dropped:,} of {counts.charted:,}"


def sparse(table: pa.Table, settings: Extraction) -> list[str]:
    """A sentence about each covariate that most rows lack."""
    shares = {one.name: table[one.name].null_count / table.num_rows for one in settings.covariates}
    return [
        f"{name} is missing in {share:.1%} of rows, and a study fills what is missing with a constant: look at its "
        "source in dictionary.md, or drop it."
        for name, share in shares.items()
        if share > MOSTLY
    ]
