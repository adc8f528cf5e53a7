"""Does tuning choose well? Rules against each other, and auto against the best fixed settings in hindsight.

In every replication each site's candidates are scored once; every rule then picks, and what it picked is fitted and
valued. Beside it stand fixed settings (c, λ, w, what is shared), the same at all sites: the best of them on one half of
the replications is scored on the other half, and the other way round.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from experiments.comparison import AUTO, Case, Drawn, Plan, Trial, draw, mean_references, read, rule_of
from experiments.findings import Figure, Finding, Table
from experiments.intervals import Interval, bootstrap, mean
from experiments.replications import Progress, ignore_progress, replicate, seeds_of
from fdtr import Study, Trajectories, combine, fit_federated, fit_local, tuning
from fdtr.learners import Others, Settings, fit_with_each
from fdtr.simulation import Act
from fdtr.site import message_settings, others_in, score_together
from fdtr.tuning import Candidate, Scores

if TYPE_CHECKING:
    import altair

Array = NDArray[np.float64]

RULES: dict[str, Callable[[Scores], Candidate]] = {
    "chosen rule": tuning.choose,
    "least held-out error": tuning.least_error,
    "least contrast error": tuning.least_contrast,
}
CHOSEN, ERROR, CONTRAST = RULES
FULL_AUTO = "everything auto"
PESSIMISMS = (0.0, 0.0005, 0.002, 0.005)
FIXED = tuning.Grid(ridges=(1e-4, 1e-3, 1e-2, 0.1, 1.0), weights=(0.0, 0.1, 0.3, 1.0)).candidates
LEAST = 0.85
"""Of what the best fixed setting reaches, auto should reach so much everywhere."""

MESSAGES = "Messages come from fits with c = 0.0005, λ = 0.01 throughout; a study that fixes c and λ would send others."
EXPERIMENT = 3
"""Tells its seeds from those of other experiments."""

PLAN = Plan(EXPERIMENT, replications=12, fresh=500)  # an even number of replications: halves are compared


@dataclass(frozen=True, eq=False)
class Chosen:
    """Values of one replication at one size, means over sites: of `rules`, and of every fixed setting (candidates, c).

    `sharing` is the mean w that the chosen rule took, `moved` the share of sites that chose another c than 0.0005.
    """

    rules: Mapping[str, float]
    fixed: Array
    sharing: float
    moved: float


@dataclass(frozen=True, eq=False)
class Outcome:
    """One replication: what was chosen at each size, and the mean over sites of behaviour and optimum."""

    by_size: Mapping[int, Chosen]
    behaviour: float
    optimum: float


@dataclass(frozen=True)
class RuleRow:
    """The chosen rule less each criterion alone, and c auto less c = 0.0005, in percent of (optimum − behaviour)."""

    world: str
    shape: str
    n: int
    less_error: float
    less_error_low: float
    less_error_high: float
    less_contrast: float
    less_contrast_low: float
    less_contrast_high: float
    auto_pessimism: float
    auto_pessimism_low: float
    auto_pessimism_high: float
    moved_pessimism: float
    sharing: float


@dataclass(frozen=True)
class FixedRow:
    """(value − behaviour)/(optimum − behaviour) of auto and of the best fixed setting; their ratio, with an interval.

    The ratio is NaN where the best fixed setting is no better than clinicians. `best` names the setting that is best on
    all replications.
    """

    world: str
    shape: str
    n: int
    auto: float
    fixed: float
    ratio: float
    low: float
    high: float
    best: str


def run_tuning(plan: Plan, processes: int | None = None, progress: Progress = ignore_progress) -> Finding:
    """Run every case, and compare."""
    outcomes = replicate(run_trial, plan.trials(), "tuning", processes, progress)
    rules, fixed = [], []
    for case, own in plan.by_case(outcomes):
        for n in plan.sizes:
            rules.append(rule_row(case, n, own))
            fixed.append(fixed_row(case, n, own))
    return Finding(
        title="What tuning chooses",
        shows=[*_describe_rules(rules), *_describe_fixed(fixed), MESSAGES],
        tables=[Table("tuning-rules", rules), Table("tuning-fixed", fixed)],
        figures=[Figure("tuning-rules", "The chosen rule less each criterion alone", partial(_draw, rules))],
    )


def run_trial(trial: Trial) -> Outcome:
    """Choose by every rule, and fit every fixed setting, at every size."""
    drawn, tables = draw(trial)
    by_size = {n: _choose_and_value(drawn, read(drawn.world, n, seeds).by_site()) for n, seeds in tables.items()}
    known = mean_references(drawn)
    return Outcome(by_size, known.behaviour, known.optimum)


def _choose_and_value(drawn: Drawn, sites: Mapping[str, Trajectories]) -> Chosen:
    study = Study.model_validate(drawn.world.study())
    auto = Study.model_validate(drawn.world.study(**AUTO))
    local = {site: fit_local(study, rows) for site, rows in sites.items()}
    total = combine(fit.summary for fit in local.values())
    own = {site: replace(fit.summary, fingerprint=auto.fingerprint) for site, fit in local.items()}
    auto_total = combine(own.values())
    ruled, fixed, sharing, moved = [], [], [], []
    for place, (site, rows) in enumerate(sites.items()):
        others = others_in(total, local[site].summary)
        scores = score_together(study, rows, others)
        picked = {name: rule(scores) for name, rule in RULES.items()}
        grid = _Fits(rows, study, message_settings(study), others)
        acts = [grid.acts(candidate, (tuning.USUAL_PESSIMISM,))[0] for candidate in picked.values()]
        tuned = fit_federated(auto, rows, auto_total, own[site]).policy
        acts.append(tuned.act)
        moved.append(tuned.settings["pessimism"] != tuning.USUAL_PESSIMISM)
        acts += [act for candidate in FIXED for act in grid.acts(candidate, PESSIMISMS)]
        values = drawn.values_at(place, acts)
        ruled.append(values[: len(RULES) + 1])
        fixed.append(values[len(RULES) + 1 :].reshape(len(FIXED), len(PESSIMISMS)))
        sharing.append(picked[CHOSEN].sharing)
    return Chosen(
        rules=dict(zip([*RULES, FULL_AUTO], np.mean(ruled, axis=0).tolist(), strict=True)),
        fixed=np.mean(fixed, axis=0),
        sharing=float(np.mean(sharing)),
        moved=float(np.mean(moved)),
    )


@dataclass(frozen=True, eq=False)
class _Fits:
    """Fits of one site, with any candidate and several c at once."""

    rows: Trajectories
    study: Study
    settings: Settings
    others: Others

    def acts(self, candidate: Candidate, pessimisms: Sequence[float]) -> list[Act]:
        """What the policies do, one for each c."""
        at = replace(self.settings, ridge=candidate.ridge)
        fits = fit_with_each(
            self.rows, self.study.feature_map, at, self.others, candidate.sharing, candidate.share, pessimisms
        )
        return [rule_of(fit, self.study) for fit in fits]


def rule_row(case: Case, n: int, outcomes: Sequence[Outcome]) -> RuleRow:
    """How the chosen rule does beside each criterion, and c auto beside c = 0.0005."""
    span = float(np.mean([o.optimum - o.behaviour for o in outcomes]))

    def gain(first: str, second: str) -> tuple[float, float, float]:
        return mean([100 * (o.by_size[n].rules[first] - o.by_size[n].rules[second]) / span for o in outcomes]).ends

    sharing, moved = (float(np.mean([getattr(o.by_size[n], name) for o in outcomes])) for name in ("sharing", "moved"))
    parts = (*gain(CHOSEN, ERROR), *gain(CHOSEN, CONTRAST), *gain(FULL_AUTO, CHOSEN))
    return RuleRow(case.called, case.shape, n, *parts, moved, sharing)


def fixed_row(case: Case, n: int, outcomes: Sequence[Outcome]) -> FixedRow:
    """The best fixed setting of one half of the replications, scored on the other; both ways, averaged."""
    values = np.array([o.by_size[n].fixed.ravel() for o in outcomes])
    auto = np.array([o.by_size[n].rules[FULL_AUTO] for o in outcomes])
    behaviour = np.array([o.behaviour for o in outcomes])
    span = np.array([o.optimum for o in outcomes]) - behaviour
    fixed, even = np.empty(len(outcomes)), np.arange(len(outcomes)) % 2 == 0
    for half in (even, ~even):
        fixed[~half] = values[~half, values[half].mean(axis=0).argmax()]
    gains = np.column_stack([auto - behaviour, fixed - behaviour])
    by_auto, by_fixed = (gains.mean(axis=0) / span.mean()).tolist()
    if by_fixed > 0:
        ratio = bootstrap(gains, _ratio, np.random.default_rng(seeds_of(0, EXPERIMENT, case.number, n)))
    else:
        ratio = Interval(np.nan, np.nan, np.nan)
    best = _name(*_settings()[int(values.mean(axis=0).argmax())])
    return FixedRow(case.called, case.shape, n, by_auto, by_fixed, *ratio.ends, best)


def _ratio(gains: Array) -> float:
    return float(gains[0] / gains[1])


def _settings() -> list[tuple[Candidate, float]]:
    return list(product(FIXED, PESSIMISMS))


def _name(candidate: Candidate, c: float) -> str:
    shared = f"w = {candidate.sharing:g}, {candidate.share}s" if candidate.sharing else "alone"
    return f"c = {c:g}, λ = {candidate.ridge:g}, {shared}"


def _describe_rules(rows: Sequence[RuleRow]) -> list[str]:
    sentences = []
    for name, low, middle, high in (
        (ERROR, "less_error_low", "less_error", "less_error_high"),
        (CONTRAST, "less_contrast_low", "less_contrast", "less_contrast_high"),
        ("c = 0.0005 (c auto less that)", "auto_pessimism_low", "auto_pessimism", "auto_pessimism_high"),
    ):
        means = [getattr(row, middle) for row in rows]
        behind, ahead = sum(getattr(row, high) < 0 for row in rows), sum(getattr(row, low) > 0 for row in rows)
        sentences.append(
            f"Against {name}, {len(rows)} cells: {min(means):+.2f}% … {max(means):+.2f}% of (optimum − behaviour), "
            f"median {np.median(means):+.2f}%; the interval lies above 0 in {ahead}, below 0 in {behind}."
        )
    return sentences


def _describe_fixed(rows: Sequence[FixedRow]) -> list[str]:
    finite = [row for row in rows if np.isfinite(row.ratio)]
    ratios = np.array([row.ratio for row in finite])
    summary = (
        f"Everything auto reaches, of what the best fixed (c, λ, w, kind of sharing) reaches, a median of "
        f"{np.median(ratios):.1%} and at least {ratios.min():.1%} over {len(finite)} cells (world × n); in "
        f"{np.sum(ratios < LEAST)} cells less than {LEAST:.0%}."
    )
    less = [
        f"Less than {LEAST:.0%}: {row.ratio:.1%} ({row.low:.1%} to {row.high:.1%}), {row.world}, {row.shape}, "
        f"n = {row.n}: {row.auto:.1%} of (optimum − behaviour), where {row.best} reaches {row.fixed:.1%}."
        for row in finite
        if row.ratio < LEAST
    ]
    without = [row for row in rows if not np.isfinite(row.ratio)]
    return [summary, *less, *(f"No fixed setting beats clinicians: {row.world}, n = {row.n}." for row in without)]


def _draw(rows: Sequence[RuleRow]) -> "altair.TopLevelMixin":
    from experiments import charts

    return charts.rules_by_world(rows)
