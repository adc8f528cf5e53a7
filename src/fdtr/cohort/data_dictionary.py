"""Data dictionary: what each column of a table means, where it was read, and what was missing or dropped."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fdtr.cohort.extraction_settings import MEASURED, MISSING, Charted, ExtractionSettings
from fdtr.cohort.missing_values import Counts, SourceCounts
from fdtr.cohort.settings_toml import exact


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

    def as_row(self) -> dict[str, Any]:
        """The entry as a row of the dictionary's table."""
        return asdict(self)


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
        *(_state(c, settings, table, counts.states.get(c.name, Counts())) for c in covariates),
        *(Entry(f"{c.name}{MISSING}", f"1 where {c.name} is missing") for c in covariates),
        *(Entry(c.name, c.meaning, c.unit, range=_bounds(c.range)) for c in settings.site_covariates),
        _dose(settings, counts.dose),
        Entry("action", f"level of the dose: how many of {', '.join(map(exact, settings.dose.cuts))} ml it exceeds"),
        replace(_reward(settings, table, counts.outcome), source=origins.get(settings.outcome.name, "")),
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
        charted=counts.charted,
        dropped=counts.dropped,
    )


def _dose(settings: ExtractionSettings, counts: Counts) -> Entry:
    return Entry(
        "dose",
        f"volume given in the step: {', '.join(settings.dose.names)}",
        "ml",
        plausible=f"above 0, up to {exact(settings.dose.largest)} a dose, in ml or litres",
        charted=counts.charted,
        dropped=counts.dropped,
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
        charted=counts.charted,
        dropped=counts.dropped,
    )


def as_markdown(entries: tuple[Entry, ...], heading: str) -> str:
    """The dictionary as a page in Markdown. Columns without any content are left out."""
    rows = [entry.as_row() for entry in entries]
    names = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    lines = [f"# {heading}", "", f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {' | '.join(_cell(row[name]) for name in names)} |" for row in rows]
    lines += ["", *(f"* **{name}**: {HEADINGS[name]}." for name in names if name in HEADINGS)]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")
