"""Who may send, and how much of it: sites admitted and rank kept by the disclosure rules, before and after.

The rules before judged exact sums by all columns of a site, and refused a message where one of them failed. Those after
weigh the rows, judge what a message shows, and repair it. Some sites are looked at in a secure sum, too, where the
rules hold for the total of the others.
"""

import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from experiments.findings import Finding, Table
from experiments.hospital_tables import NINE_SIZES, HospitalTable, clif_demo, generated_mimic, nine_sites
from experiments.messages import (
    BEFORE,
    exact_sums,
    has_enough,
    is_admitted,
    ranks,
    ranks_of_total,
    sent_alone,
    sent_together,
    with_disclosure,
)
from experiments.replications import anew, seeds_of
from fdtr import read_trajectories, simulate
from fdtr.simulation import DiscreteSpec, WorldSpec, make_discrete_world, make_world

EXPERIMENT = 61
"""Tells its seeds from those of other experiments."""

OPEN, TOGETHER = "open", "secure sum"
_DEMO, _CLIF = "the demo", "CLIF demo"
_DEMO_BEFORE = {"max_leverage": 0.5}
"""What the demo's study file asked for while one failure refused a message."""
_LINEAR = {
    "linear, 6 actions, 5 steps": WorldSpec(horizon=5),
    "linear, 6 actions, 15 steps": WorldSpec(horizon=15),
    "linear, 5 shared, 2 actions, 5 steps": WorldSpec(n_shared=5, n_specific=5, n_actions=2, horizon=5),
}
_NINE = {f"nine sites, {actions} actions, {steps} steps": (actions, steps) for actions in (3, 2) for steps in (5, 3)}
_EIGHT = "eight treatments"
_MIMIC = "generated MIMIC-IV, nine units"


@dataclass(frozen=True)
class Look:
    """One table of a `design` to look at in a `mode`; `size` is patients a site, stays in all, or 0 where it is fixed.

    `draw` says which table of its kind it is.
    """

    design: str
    size: int
    mode: str
    draw: int
    seed: int

    @property
    def key(self) -> str:
        """What its outcome is known by, where outcomes are kept."""
        return f"look {self.design} {self.size} {self.mode} {self.draw} {self.seed}"


@dataclass(frozen=True)
class Row:
    """One design: of `sites` in all tables, how many are `admitted`, and the share of rank `kept`, before and after.

    Admitted: something is left in at least half of the steps. `kept_in_total` is the rank of the hub's total over that
    of the total of exact sums, after. `refused_now` counts sites that sent before and send
    nothing now. `with_eleven` are sites that have eleven patients at some action of each step, `eleven_send` those of
    them that are admitted now.
    """

    design: str
    n: str
    mode: str
    tables: int
    sites: int
    admitted_before: int
    kept_before: float
    admitted: int
    kept: float
    kept_in_total: float
    refused_now: int
    with_eleven: int
    eleven_send: int


def looks(seed: int, quick: bool, clif: bool) -> list[Look]:
    """All tables, cheap ones first."""
    if quick:
        few = [("linear, 5 shared, 2 actions, 5 steps", 100), ("nine sites, 2 actions, 3 steps", 0)]
        return [Look(design, size, mode, 0, seed) for design, size in few for mode in (OPEN, TOGETHER)]
    plan: list[tuple[str, tuple[int, ...], int, int]] = [  # design, sizes, tables open and in a secure sum
        (_DEMO, (0,), 10, 3),
        *((design, (50, 100, 200, 600), 10, 2) for design in _LINEAR),
        *((design, (0,), 5, 5) for design in _NINE),
        (_MIMIC, (1500, 5000), 3, 1),
        *([(_CLIF, (0,), 1, 1)] if clif else []),
        (_EIGHT, (200, 600, 2000), 3, 0),
        (_EIGHT, (200,), 0, 1),
    ]
    return [
        Look(design, size, mode, draw, seed)
        for design, sizes, alone, together in plan
        for mode, tables in ((OPEN, alone), (TOGETHER, together))
        for size in sizes
        for draw in range(tables)
    ]


def table_of(look: Look) -> HospitalTable:
    """The table of a look, the same in both modes."""
    seeds = seeds_of(look.seed, EXPERIMENT, sum(look.design.encode()), look.size, look.draw)
    if look.design == _DEMO:
        with tempfile.TemporaryDirectory() as folder:
            simulate(None, folder, seed=look.draw + 100 * look.seed)
            content = tomllib.loads((Path(folder) / "study.toml").read_text(encoding="utf-8"))
            return HospitalTable(content, csv.read_csv(Path(folder) / "table.csv"))
    if look.design == _CLIF:
        return clif_demo()
    if look.design == _MIMIC:
        return generated_mimic(look.size, look.draw + 100 * look.seed)
    if look.design in _NINE:
        return nine_sites(*_NINE[look.design], anew(seeds))
    of_world, of_table = seeds.spawn(2)
    rng = np.random.default_rng(of_world)
    world = make_discrete_world(DiscreteSpec(), rng) if look.design == _EIGHT else make_world(_LINEAR[look.design], rng)
    return HospitalTable(world.study(), pa.table(world.table(look.size, np.random.default_rng(of_table))))


def rules_of(look: Look, content: dict[str, Any]) -> dict[str, Any]:
    """The thresholds of a design: those of its own study; the defaults for simulated worlds, which have none."""
    own = look.design in (_DEMO, _CLIF, _MIMIC)
    return dict(content["disclosure"]) if own else {}


def look_at(look: Look) -> dict[str, Any]:
    """Ranks by step and site: `possible` without rules, sent `before` and `after`; those of the `total`, in a pair.

    `eleven` says which sites have eleven patients at some action of each step; a site that sends nothing has no ranks.
    """
    hospital = table_of(look)
    rules, together = rules_of(look, hospital.content), look.mode == TOGETHER
    earlier = {**BEFORE, **(_DEMO_BEFORE if look.design == _DEMO else {})}
    before, after = (
        with_disclosure(hospital.content, {**rules, **changed}, together=together) for changed in (earlier, {})
    )
    sites = read_trajectories(hospital.table, after).by_site()
    exact = {site: exact_sums(after, rows) for site, rows in sites.items()}
    was = sent_alone(before, read_trajectories(hospital.table, before).by_site())
    now = (sent_together if together else sent_alone)(after, sites)
    return {
        "possible": {site: ranks(sums) for site, sums in exact.items()},
        "eleven": {site: has_enough(rows, after.disclosure.min_action) for site, rows in sites.items()},
        "before": {site: ranks(was[site].sums) if site in was else [] for site in sites},
        "after": {site: ranks(now[site].sums) if site in now else [] for site in sites},
        "total": [ranks_of_total(after, now), ranks(reduce(add, exact.values()))],
    }


def rows_of(outcomes: Sequence[tuple[Look, dict[str, Any]]]) -> list[Row]:
    """A row for each design, size and mode, over its tables."""
    by_place: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for look, outcome in outcomes:
        by_place.setdefault((look.design, look.size, look.mode), []).append(outcome)
    return [_row(*place, found) for place, found in by_place.items()]


def _row(design: str, size: int, mode: str, outcomes: Sequence[dict[str, Any]]) -> Row:
    sites = [(outcome, site) for outcome in outcomes for site in outcome["possible"]]
    before, after = ([outcome[name][site] for outcome, site in sites] for name in ("before", "after"))
    possible = sum(sum(outcome["possible"][site]) for outcome, site in sites)
    eleven = [outcome["eleven"][site] for outcome, site in sites]
    return Row(
        design=design,
        n=f"{min(NINE_SIZES)} to {max(NINE_SIZES)}" if design in _NINE else str(size or "as it is"),
        mode=mode,
        tables=len(outcomes),
        sites=len(sites),
        admitted_before=sum(map(is_admitted, before)),
        kept_before=sum(map(sum, before)) / possible,
        admitted=sum(map(is_admitted, after)),
        kept=sum(map(sum, after)) / possible,
        kept_in_total=_ratio([outcome["total"] for outcome in outcomes]),
        refused_now=sum(any(was) and not any(now) for was, now in zip(before, after, strict=True)),
        with_eleven=sum(eleven),
        eleven_send=sum(has and is_admitted(now) for has, now in zip(eleven, after, strict=True)),
    )


def _ratio(totals: Sequence[Sequence[Sequence[int]]]) -> float:
    """Σ of the first ranks of each pair over Σ of the second."""
    kept, possible = (sum(sum(pair[place]) for pair in totals) for place in (0, 1))
    return kept / possible


def find(outcomes: Sequence[tuple[Look, dict[str, Any]]]) -> Finding:
    """Who may send, in a table and in sentences."""
    rows = rows_of(outcomes)
    places = dict.fromkeys((row.design, row.mode) for row in rows)
    by_place = [[row for row in rows if (row.design, row.mode) == place] for place in places]
    return Finding(
        title="Who may send",
        shows=[EXPLAINED, *map(_sentence, by_place), *_less(rows)],
        tables=[Table("disclosure-sites", rows)],
    )


EXPLAINED = (
    "Admitted: something of the shared effects is left in at least half of the steps. Rank kept: the independent "
    "directions that are sent, over those of the exact sums, over all sites and steps; in the total, those of the "
    "hub's total over those of all exact sums together. Before: exact sums, rules on all columns, one failure refuses "
    "the message or withholds the step, as the study says. Simulated worlds have the default rules; the demo, "
    "generated MIMIC-IV and the CLIF demo have those of their own study; the demo's had max_leverage = 0.5 before."
)


def _sentence(rows: Sequence[Row]) -> str:
    """All sizes of one design in one mode."""
    return f"{rows[0].design}, {rows[0].mode}: {'; '.join(map(_cell, rows))}."


def _cell(row: Row) -> str:
    where = "" if row.n == "as it is" else f"n = {row.n}: "
    eleven = ""
    if row.mode == TOGETHER and row.with_eleven < row.sites:
        eleven = f"; of {row.with_eleven} with eleven patients at some action of each step, {row.eleven_send}"
    return (
        f"{where}{row.admitted_before} of {row.sites} sites before, {row.admitted} now (rank kept "
        f"{row.kept_before:.2f} before, {row.kept:.2f} now, {row.kept_in_total:.2f} in the total{eleven})"
    )


def _less(rows: Sequence[Row]) -> list[str]:
    """Sites that sent before and send nothing now, and designs that keep less than before."""

    def named(chosen: Sequence[Row], what: Callable[[Row], str]) -> str:
        return "; ".join(f"{row.design}, {row.mode}, n = {row.n} ({what(row)})" for row in chosen) or "none"

    refused = [row for row in rows if row.refused_now]
    less = [row for row in rows if row.kept < row.kept_before - 0.005]
    lost = named(refused, lambda row: f"{row.refused_now} of {row.sites}")
    return [
        f"Sites that sent before and send nothing now: {lost}.",
        f"Designs that keep less of the rank than before: {named(less, lambda row: f'{row.kept:.2f}')}.",
    ]
