"""The data dictionary: what every column of a table means, where it comes from, and what was missing or dropped."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from fdtr.cohort.settings import MISSING, Charted, Extraction


@dataclass(frozen=True)
class Entry:
    """A column of the table. Counts are of rows (`missing`) and of charted values (`charted`, `dropped`)."""

    column: str
    meaning: str
    unit: str = ""
    source: str = ""
    plausible: str = ""
    missing: int | None = None
    charted: int | None = None
    dropped: int | None = None

    def as_row(self) -> dict[str, Any]:
        """The entry as a row of the dictionary's table."""
        return asdict(self)


def describe(
    settings: Extraction, origins: Mapping[str, str], table: pa.Table, counted: Mapping[str, Mapping[str, Any]]
) -> tuple[Entry, ...]:
    """An entry for each column; `counted` has the charted and dropped values of each name."""
    entries = [
        Entry("site", "where the stay began", source=origins.get("site", "")),
        Entry("patient", "the stay: one trajectory", source=origins.get("patient", "")),
        Entry("person", "the person; some have several stays", source=origins.get("person", "")),
        Entry("step", f"number of the step, from 0; each has {settings.step_hours:g} hours from time zero"),
        *(_state(c, settings, origins, table, counted) for c in settings.covariates),
        *(Entry(f"{c.name}{MISSING}", f"1 where {c.name} is missing") for c in settings.covariates),
        *(Entry(c.name, c.meaning, c.unit, origins.get(c.name, "")) for c in settings.site_covariates),
        _dose(settings, origins, counted),
        Entry(
            "action", f"level of the dose: how many of {', '.join(f'{c:g}' for c in settings.dose.cuts)} ml it exceeds"
        ),
        _reward(settings, origins, counted),
        Entry("end", "how a stay ended that has fewer steps than the study, on its last row: death or discharge"),
    ]
    return tuple(entries)


def _state(
    covariate: Charted,
    settings: Extraction,
    origins: Mapping[str, str],
    table: pa.Table,
    counted: Mapping[str, Mapping[str, Any]],
) -> Entry:
    return Entry(
        covariate.name,
        f"{covariate.meaning}, last value before the step, at most {settings.look_back(covariate):g} hours old",
        covariate.unit,
        origins.get(covariate.name, ""),
        f"{covariate.plausible[0]:g} to {covariate.plausible[1]:g}",
        table[covariate.name].null_count,
        **_counts(covariate.name, counted),
    )


def _dose(settings: Extraction, origins: Mapping[str, str], counted: Mapping[str, Mapping[str, Any]]) -> Entry:
    return Entry(
        "dose",
        f"volume given in the step: {', '.join(settings.dose.names)}",
        "ml",
        origins.get("dose", ""),
        f"above 0, up to {settings.dose.largest:g} a dose, in ml or litres",
        **_counts("dose", counted),
    )


def _reward(settings: Extraction, origins: Mapping[str, str], counted: Mapping[str, Mapping[str, Any]]) -> Entry:
    outcome = settings.outcome
    low, high = outcome.range
    kind = "at the step's end" if outcome.reward == "level" else "by how much it changed in the step"
    return Entry(
        "reward",
        f"{outcome.meaning} {kind}, mapped from {low:g} to {high:g} {outcome.unit} onto [0, 1]; {outcome.better} is "
        "better; 0 where the patient died in the step",
        "",
        origins.get(outcome.name, ""),
        f"{outcome.plausible[0]:g} to {outcome.plausible[1]:g}",
        **_counts(outcome.name, counted),
    )


def _counts(name: str, counted: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    found = counted.get(name, {})
    return {"charted": int(found.get("charted", 0)), "dropped": int(found.get("dropped", 0))}


def as_markdown(entries: tuple[Entry, ...], heading: str) -> str:
    """The dictionary as a page."""
    names = list(entries[0].as_row())
    lines = [f"# {heading}", "", f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {' | '.join(_cell(value) for value in entry.as_row().values())} |" for entry in entries]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")
