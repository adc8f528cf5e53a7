"""Draft a study file from a table: a start to edit, with what has to be decided written beside it."""

import json
import math
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import InvalidTable
from fdtr.study import Study
from fdtr.trajectories.table_columns import Texts, numbers, texts
from fdtr.trajectories.table_in_database import DatabaseTable
from fdtr.trajectories.table_sources import Columns, Covariate, TableLayout, load, round_outward, stream

ROLES: dict[str, tuple[str, ...]] = {
    "site": ("site", "hospital", "center", "centre", "unit", "careunit", "site_id", "hospital_id"),
    "patient": ("patient", "patient_id", "subject", "subject_id", "stay_id", "id", "person_id", "hospitalization_id"),
    "step": ("step", "stage", "time", "t", "visit", "h", "period"),
    "action": ("action", "treatment", "dose", "a", "arm"),
    "reward": ("reward", "outcome", "r", "y", "response"),
    "end": ("end", "outcome_type", "disposition", "ended"),
}
"""Names that a column of each role commonly has."""

MOST_LEVELS = 20
MOST_ENDS = 10


@dataclass(frozen=True)
class _Covariate:
    name: str
    low: float
    high: float
    site_level: bool
    gaps: int


@dataclass(frozen=True)
class Draft:
    """The `text` of a study file; `has_site` says whether the table has a column of sites."""

    text: str
    has_site: bool


def draft_study(source: Any, name: str) -> Draft:
    """A study file for the table `source`, with comments on what to decide.

    Columns are recognised by common names such as site, patient, step, action and reward; the others become covariates.

    >>> import fdtr, numpy as np, pyarrow as pa
    >>> from fdtr.simulation import WorldSpec, make_world
    >>> world = make_world(WorldSpec(n_sites=2, horizon=2, n_actions=2), np.random.default_rng(1))
    >>> table = pa.table(world.table(60, np.random.default_rng(2)))
    >>> draft = fdtr.draft_study(table, name="fluids")
    >>> print(draft.text)
    # A draft made from a table. Decide, together with all sites:
    ...
    name = "fluids"
    horizon = 2  # steps of a full trajectory
    ...
    [[covariates]]
    name = "shared_1"
    effect = "specific"
    range = [0, 1]
    ...
    """
    table = _Table()
    for part in _parts_of(source):
        table.add(part)
    steps, actions, rewards = (table.required(role) for role in ("step", "action", "reward"))
    if "patient" not in table.roles:
        raise InvalidTable(table.missing("patient"))
    if not 2 <= len(actions.levels) <= MOST_LEVELS:
        many = f"more than {MOST_LEVELS}" if len(actions.levels) > MOST_LEVELS else len(actions.levels)
        raise InvalidTable(
            f'The action column "{table.roles["action"]}" has {many} different values; a study needs 2 to '
            f"{MOST_LEVELS} action levels. Group doses into levels first."
        )
    first = int(steps.low)
    if first != 0:
        raise InvalidTable(
            f'Steps in column "{table.roles["step"]}" start at {first}; they must count from 0. Subtract {first} first.'
        )
    text = _render(name, int(steps.high) + 1, table, sorted(actions.levels), rewards)
    Study.model_validate(tomllib.loads(text))  # a draft that is no study would be a fault here
    return Draft(text, "site" in table.roles)


@dataclass
class _Column:
    """What is known of a column after some parts of the table."""

    has_text: bool = False
    low: float = math.inf
    high: float = -math.inf
    gaps: int = 0
    levels: set[float] = field(default_factory=set)  # MOST_LEVELS and one more at most
    varies_within_sites: bool = False
    by_site: dict[str | None, float] = field(default_factory=dict)

    def add(self, column: Any, sites: Texts | None) -> None:
        """Take in another part."""
        found = numbers(column)
        self.has_text |= found is None or found.text is not None
        if found is None:
            return
        finite = np.isfinite(found.values)
        values = found.values[finite]
        self.gaps += len(finite) - len(values)
        if not len(values):
            return
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        if len(self.levels) <= MOST_LEVELS:
            self.levels = {*sorted({*self.levels, *np.unique(values).tolist()})[: MOST_LEVELS + 1]}
        if sites is not None and not self.varies_within_sites:
            self._compare(values, sites.codes[finite], [*sites.labels.to_pylist(), None])

    def _compare(self, values: NDArray[np.float64], codes: NDArray[np.intp], labels: list[str | None]) -> None:
        """Find whether the column varies within a site; a code of -1 is a row without a site."""
        low, high = np.full(len(labels), math.inf), np.full(len(labels), -math.inf)
        np.minimum.at(low, codes, values)
        np.maximum.at(high, codes, values)
        for code in np.unique(codes).tolist():
            first = self.by_site.setdefault(labels[code], float(low[code]))
            self.varies_within_sites |= not first == low[code] == high[code]
        if self.varies_within_sites:
            self.by_site.clear()


@dataclass
class _Table:
    """What is known of a table after some parts of it."""

    names: tuple[str, ...] = ()
    columns: dict[str, _Column] = field(default_factory=dict)
    sites: set[str | None] = field(default_factory=set)
    ends: set[str] = field(default_factory=set)  # MOST_ENDS and one more at most

    @property
    def roles(self) -> dict[str, str]:
        """The name of the column of each role that one has."""
        by_lower = {name.lower(): name for name in reversed(self.names)}
        columns = {role: [by_lower[n] for n in names if n in by_lower] for role, names in ROLES.items()}
        return {role: names[0] for role, names in columns.items() if names}

    def add(self, part: Columns) -> None:
        """Take in another part."""
        self.names = part.names
        site, end = (part.arrow.get(self.roles.get(role, "")) for role in ("site", "end"))
        sites = None if site is None else texts(site)
        for name, column in part.arrow.items():
            self.columns.setdefault(name, _Column()).add(column, sites)
        if sites is not None:
            self.sites |= {*sites.labels.to_pylist(), *([None] if (sites.codes < 0).any() else [])}
        ends = None if end is None else texts(end)
        if ends is not None and len(self.ends) <= MOST_ENDS:
            self.ends |= {*ends.labels.to_pylist()[: MOST_ENDS + 1]}

    def required(self, role: str) -> _Column:
        """The column of a role, which has to be there and hold numbers."""
        name = self.roles.get(role, "")
        if name not in self.columns:
            raise InvalidTable(self.missing(role))
        column = self.columns[name]
        if column.has_text or column.gaps:
            raise InvalidTable(f'The {role} column "{name}" must hold a number in every row. Recode it first.')
        return column

    def missing(self, role: str) -> str:
        """The sentence about a role that no column has."""
        # A table without a header shows a patient's cells as column names, so names are quoted only beside known ones.
        known = len(self.roles) >= 2
        seen = f"The table has {', '.join(self.names)}." if known else "Does the first line hold column names?"
        return (
            f"No column looks like the {role} (looked for {', '.join(ROLES[role])}). {seen} Rename one, or write the "
            f"study file by hand with [columns] {role} = …."
        )

    def covariates(self) -> tuple[list[_Covariate], list[str]]:
        """Columns without a role that vary and hold numbers, and the names of the others."""
        covariates, left_out = [], []
        used = {*self.roles.values()}
        for name, column in self.columns.items():
            if name in used:
                continue
            if column.has_text or not column.low < column.high:
                left_out.append(name)
                continue
            site_level = len(self.sites) > 1 and not column.varies_within_sites
            covariates.append(_Covariate(name, *round_outward(column.low, column.high), site_level, column.gaps))
        return covariates, left_out

    def end_names(self) -> list[str]:
        """How trajectories end; none where the column holds something else."""
        # Names of ends are words, and few: anything else in that column is about patients, and the study is public.
        words = len(self.ends) <= MOST_ENDS and not any(character.isdigit() for end in self.ends for character in end)
        return sorted(self.ends) if words else []


def _parts_of(source: Any) -> Iterator[Columns]:
    """All columns of a table that no study describes yet, part by part; a dataframe is one part."""
    if isinstance(source, DatabaseTable):
        from fdtr.cohort.database_table import stream_database_table  # loads no driver elsewhere

        return stream_database_table(source)
    is_file = isinstance(source, str | os.PathLike)
    nothing = TableLayout(horizon=1, covariates=(), action_levels=(), reward_low=0.0, reward_high=1.0)
    names = next(stream(source, nothing)).names if is_file else load(source, nothing).names
    layout = replace(nothing, covariates=tuple(Covariate(name, name, 0.0, 1.0) for name in names))
    return stream(source, layout) if is_file else iter([load(source, layout)])


def _render(name: str, horizon: int, table: _Table, levels: list[float], rewards: _Column) -> str:
    low, high = rewards.low, rewards.high
    low, high = round_outward(low, high) if low < high else (low, low + 1)
    covariates, left_out = table.covariates()
    ends = table.end_names()
    lines = [
        "# A draft made from a table. Decide, together with all sites:",
        '#  1. which effects are the same everywhere: effect = "shared" instead of "specific";',
        "#  2. ranges: those below are this table's own extremes, rounded. Replace them by bounds known beforehand,",
        "#     because the study file is public and must hold at every site.",
        "format = 1",
        f"name = {_quoted(name)}",
        f"horizon = {horizon}  # steps of a full trajectory",
        "",
        "[columns]  # how this table calls them; each site may have its own",
        *(f"{role} = {_quoted(column)}" for role, column in table.roles.items() if role != "end" or ends),
        "",
        "[actions]",
        f"levels = [{', '.join(_plain(level) for level in levels)}]",
        f"labels = [{', '.join(_quoted(_plain(level)) for level in levels)}]  # names for people",
        'basis = "polynomial"',
        f"degree = {min(2, len(levels) - 1)}",
    ]
    for covariate in covariates:
        lines += ["", "[[covariates]]", f"name = {_quoted(covariate.name)}", 'effect = "specific"']
        lines.append(f"range = [{_plain(covariate.low)}, {_plain(covariate.high)}]")
        if covariate.site_level:
            lines.append('level = "site"  # constant within each site')
        if covariate.gaps:
            lines.append(f'# missing = "forward"  # or "range-middle": {covariate.gaps} values are missing')
    lines += ["", "[reward]", f"range = [{_plain(low)}, {_plain(high)}]  # mapped onto [0, 1]"]
    if ends:
        lines += ["", "[ends]  # what each missing step is worth on [0, 1], by how a trajectory ended: decide"]
        lines += [f"{_quoted(end)} = 0.0" for end in ends]
    lines += [
        "",
        "[learning]  # auto: each site's own held-out patients choose",
        'pessimism = "auto"  # or { noise = 0.03 }, units of the outcome\'s noise; larger stays closer to usual care',
        'ridge = "auto"  # λ; larger is steadier and more biased',
        'sharing = "auto"  # w on the other sites\' sums: 1 is the paper, 0 is alone',
        'share = "auto"  # "value" is the paper, "reward" where a shared covariate predicts the next state',
    ]
    if left_out:
        lines += ["", f"# Left out, because they hold text or do not vary: {', '.join(map(_quoted, left_out))}"]
    return "\n".join(lines) + "\n"


def _plain(number: float) -> str:
    return f"{number:.10g}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a TOML basic string
