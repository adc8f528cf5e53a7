"""Where nothing can be shared: with shared covariates that are constant within a site, FDTR is LDTR, and check says so.

A valid model has the constant function in the span of φ1, because probabilities add up to one. A φ0 that is constant
within a site then lies in that span too, S = 0, and the other sites have nothing to say. What is left of a difference
is the N in α = c d H √log(2dHN/ξ), where LDTR has n.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from experiments.comparison import rule_of
from experiments.findings import Figure, Finding, Table
from experiments.intervals import Interval, mean
from experiments.replications import Progress, anew, replicate, seeds_of
from experiments.theorems.fitting import Patients, Together, fit_together, settings
from fdtr import Study, check, read_trajectories
from fdtr.simulation import World, WorldSpec, make_world

if TYPE_CHECKING:
    import altair

EXPERIMENT = 46
RUNS = 40
PESSIMISMS = (0.0, 0.0005, 0.005)
RIDGE = 0.01
EQUAL = 1e-9
"""A relative difference of coefficients up to this is rounding."""


@dataclass(frozen=True)
class Variant:
    """How many of the shared covariates are constant within a site, and whether φ1 has an intercept besides."""

    name: str
    site_level: int
    intercept: bool


VARIANTS = (
    Variant("all constant within a site", 2, False),
    Variant("the same, intercept in φ1", 2, True),
    Variant("one constant within a site", 1, False),
    Variant("all vary between patients", 0, False),
)


@dataclass(frozen=True, eq=False)
class Trial:
    """One world of one variant, `n` patients a site, and its seeds."""

    variant: Variant
    n: int
    seeds: np.random.SeedSequence

    @property
    def spec(self) -> WorldSpec:
        """What the world is like."""
        return WorldSpec(site_level_shared=self.variant.site_level, n_actions=2, horizon=5)


@dataclass(frozen=True)
class Outcome:
    """By c: the largest |θ_FDTR − θ_LDTR| over the largest |θ_LDTR|, and the share of equal actions.

    `reasons` are what check says of each shared feature, "" where it carries information, and `retained` its share.
    """

    off: tuple[float, ...]
    agreement: tuple[float, ...]
    features: tuple[str, ...]
    reasons: tuple[str, ...]
    retained: tuple[float, ...]


@dataclass(frozen=True)
class SharingRow:
    """One variant and c: the largest relative difference of coefficients of all runs, the share of equal actions."""

    variant: str
    pessimism: float
    largest: float
    agreement: float
    low: float
    high: float


@dataclass(frozen=True)
class ReasonRow:
    """What check says of one shared feature, and of how many (run, site): why nothing is left of it, "" if some is.

    `retained` is the mean share of its variation that is left.
    """

    variant: str
    feature: str
    reason: str
    retained: float
    cases: int


def run(seed: int, quick: bool, processes: int | None, progress: Progress) -> Finding:
    """Fit every variant in many worlds, alone and together, and ask check."""
    runs, n = (2, 60) if quick else (RUNS, 200)
    jobs = [
        Trial(variant, n, seeds_of(seed, EXPERIMENT, number, r))
        for number, variant in enumerate(VARIANTS)
        for r in range(runs)
    ]
    outcomes = replicate(compare, jobs, "what can be shared", processes, progress)
    rows: list[SharingRow] = []
    reasons: list[ReasonRow] = []
    for number, variant in enumerate(VARIANTS):
        results = outcomes[number * runs : (number + 1) * runs]
        rows += [_row(variant.name, place, results) for place in range(len(PESSIMISMS))]
        reasons += _reasons(variant.name, results)
    return Finding(
        title="Where nothing can be shared",
        shows=[_setup(runs, n), *(_sentence(variant.name, rows, reasons) for variant in VARIANTS)],
        tables=[Table("sharing", rows), Table("sharing-check", reasons)],
        figures=[Figure("sharing", "How often FDTR and LDTR act alike", partial(_draw, rows))],
    )


def _setup(runs: int, n: int) -> str:
    return (
        f"Valid worlds of 5 sites with {n} patients each, d0 = d1 = 4; λ = {RIDGE:g}, w = 1; {runs} runs each. Where "
        "nothing is shared, N in α (n in LDTR) is all that is left to differ, and only at c > 0."
    )


def compare(trial: Trial) -> Outcome:
    """FDTR and LDTR of every site with every c, and what check says of each site."""
    of_world, of_table, of_states = (np.random.default_rng(s) for s in anew(trial.seeds).spawn(3))
    world = make_world(trial.spec, of_world)
    study = Study.model_validate(_content(world, trial.variant))
    rows = read_trajectories(pa.table(world.table(trial.n, of_table)), study).by_site()
    patients = Patients(study, tuple(rows.values()))
    fits = [fit_together(patients, settings(c, RIDGE)) for c in PESSIMISMS]
    states = [world.sample(site, 500, of_states).states for site in range(trial.spec.n_sites)]
    identified = [feature for site in patients.sites for feature in check(study, site).identified]
    return Outcome(
        off=tuple(_off(together) for together in fits),
        agreement=tuple(_agreement(together, patients, states) for together in fits),
        features=tuple(feature.feature for feature in identified),
        reasons=tuple(feature.reason for feature in identified),
        retained=tuple(feature.retained for feature in identified),
    )


def _content(world: World, variant: Variant) -> dict[str, Any]:
    content = world.study(pessimism=0.0005, ridge=RIDGE, sharing=1.0, share="value")
    return {**content, "features": {"intercept": "specific", "scale": "unit"}} if variant.intercept else content


def _off(together: Together) -> float:
    pairs = zip(together.federated, together.local, strict=True)
    return max(float(np.abs(f.theta - alone.theta).max() / np.abs(alone.theta).max()) for f, alone in pairs)


def _agreement(together: Together, patients: Patients, states: Sequence[np.ndarray]) -> float:
    same = []
    for federated, local, seen in zip(together.federated, together.local, states, strict=True):
        rules = [rule_of(fit, patients.study) for fit in (federated, local)]
        same += [np.mean(rules[0](at, step) == rules[1](at, step)) for step, at in enumerate(seen)]
    return float(np.mean(same))


def _row(variant: str, place: int, results: Sequence[Outcome]) -> SharingRow:
    agreement = mean([result.agreement[place] for result in results])
    largest = max(result.off[place] for result in results)
    return SharingRow(variant, PESSIMISMS[place], largest, agreement.estimate, agreement.low, min(agreement.high, 1.0))


def _reasons(variant: str, results: Sequence[Outcome]) -> list[ReasonRow]:
    """What was said of each feature; all reasons that occurred."""
    shares: dict[tuple[str, str], list[float]] = {}
    for result in results:
        for feature, reason, retained in zip(result.features, result.reasons, result.retained, strict=True):
            shares.setdefault((feature, reason), []).append(retained)
    return [ReasonRow(variant, *key, float(np.mean(left)), len(left)) for key, left in shares.items()]


def _sentence(variant: str, rows: Sequence[SharingRow], reasons: Sequence[ReasonRow]) -> str:
    plain, *penalised = [row for row in rows if row.variant == variant]
    equal = plain.largest <= EQUAL
    of_variant = [row for row in reasons if row.variant == variant]
    absorbed = list(dict.fromkeys(row.feature for row in of_variant if row.reason))
    quoted = "; ".join(f"“{reason}”" for reason in dict.fromkeys(row.reason for row in of_variant if row.reason))
    least = min(row.retained for row in of_variant)
    spoken = (
        f"Of {', '.join(absorbed)} `fdtr check` says: {quoted}"
        if absorbed
        else f"`fdtr check` finds {least:.0%} or more of each shared feature's variation left"
    )
    expected = all(row.reason for row in of_variant)
    shares = ", ".join(f"{Interval(r.agreement, r.low, r.high).per_cent} at c = {r.pessimism:g}" for r in penalised)
    return (
        f"{variant.capitalize()}: with c = 0 coefficients of FDTR and LDTR differ by at most {plain.largest:.1e} of "
        f"the largest, and {plain.agreement:.1%} of actions agree ({shares}). {spoken}. "
        f"{'Holds' if equal == expected else 'Fails'}."
    )


def _draw(rows: Sequence[SharingRow]) -> "altair.TopLevelMixin":
    import altair as alt

    from experiments.charts import by_pessimism, lines

    records = [
        {
            "panel": "FDTR beside LDTR",
            "series": row.variant,
            "c": f"{row.pessimism:g}",
            "agreement": row.agreement,
            "low": row.low,
            "high": row.high,
        }
        for row in rows
    ]
    y = alt.Y("agreement:Q", title="share of equal actions", scale=alt.Scale(zero=False), axis=alt.Axis(format="%"))
    return lines(records, by_pessimism(PESSIMISMS), y, [variant.name for variant in VARIANTS], panels=1)
