"""Does tuning choose well? Automatic settings against the rule before, going alone, and the best fixed settings.

In every replication each site chooses its settings as a study with defaults does. Beside it stand fixed settings (λ, w,
what is shared, pessimism), the same at all sites: the best of them on one half of the replications is scored on the
other half, and the other way round. The rule before is kept here: the least held-out error plus contrast among 143
candidates, with V_ref from the site's own fit without a penalty, and c = 0.0005.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from experiments.comparison import (
    FDTR_AUTO,
    LDTR_AUTO,
    Q_LEARN_H,
    Case,
    Drawn,
    Plan,
    Purpose,
    Size,
    Trial,
    all_cases,
    draw,
    hard_cases,
    read,
    rule_of,
)
from experiments.findings import Figure, Finding, Table
from experiments.intervals import Interval, bootstrap, mean, share
from experiments.replications import Kept, Progress, ignore_progress, replicate, seeds_of
from fdtr import Study, Trajectories, combine, fit_federated, fit_local
from fdtr.learners import NoiseUnits, Others, Settings, fit_with_each
from fdtr.simulation import Act
from fdtr.site import fit_q_learning, message_settings, others_in, score_together
from fdtr.tuning import Candidate, candidates_of

if TYPE_CHECKING:
    import altair

Array = NDArray[np.float64]

USUAL_C, NOISE, MORE_NOISE = 0.0005, NoiseUnits(0.03), NoiseUnits(0.1)
BEFORE = "FDTR (auto, before)"
PESSIMISMS: tuple[float | NoiseUnits, ...] = (USUAL_C, NOISE, MORE_NOISE)
LADDERS = ("FDTR (ladder, c = 0.0005)", "FDTR (ladder, noise = 0.03)", "FDTR (ladder, noise = 0.1)")
"""λ and sharing as FDTR (auto) chooses them, with each pessimism."""

METHODS = (FDTR_AUTO, BEFORE, *LADDERS, LDTR_AUTO, Q_LEARN_H)
FIXED = tuple(candidate for ridge in (0.001, 0.01, 0.1, 1.0) for candidate in candidates_of(ridge=ridge))

WEIGHTS_BEFORE = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
CANDIDATES_BEFORE = tuple(
    candidate
    for ridge in (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
    for candidate in (
        Candidate(ridge, 0.0, "value"),
        *(Candidate(ridge, w, "value") for w in WEIGHTS_BEFORE),
        *(Candidate(ridge, w, "reward") for w in WEIGHTS_BEFORE),
    )
)

LEAST, SMALL = 0.97, 0.05
"""Auto should reach so much of what the best fixed setting gains, where that is more than `SMALL` of the span."""

ALLOWED_LOSS = 1.0
"""In percent of (optimum − behaviour), against the rule before, and against a best fixed setting of small gain."""

HARM, RARELY = 0.05, 0.05
"""A site is harmed if it is worse than alone by so much of (optimum − behaviour), which should be as rare as this."""

ENOUGH = 200
"""Patients a site from which on these hold."""

ASKED = (
    f"Asked is {LEAST:.0%} of what the best fixed setting gains over clinicians; where that is under {SMALL:.0%} of "
    f"(optimum − behaviour), to be no more than {ALLOWED_LOSS:g}% of (optimum − behaviour) behind. Intervals are 95% "
    "over replications."
)
MESSAGES = "Messages come from fits with c = 0.0005, λ = 0.01 throughout; a study that fixes c and λ would send others."
EXPERIMENT = 3
"""Tells its seeds from those of other experiments."""


def plan_of(seed: int = 0) -> Plan:
    """All worlds, 20 replications: an even number, because halves are compared."""
    cases = [*all_cases(), *hard_cases()]
    return Plan(EXPERIMENT, replications=20, fresh=500, sizes=(50, 200, 500, 2000), seed=seed, cases=cases)


@dataclass(frozen=True, eq=False)
class Values:
    """Values of one replication at one size, by site: `methods` (K, M), `fixed` (K, settings).

    `sharing` (K,) is the w that each site took, `cautious` (K,) whether it took the larger pessimism.
    """

    methods: Array
    fixed: Array
    sharing: Array
    cautious: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Outcome:
    """One replication: the values at each size, and those of clinicians, best constant and optimum by site, (K, 3)."""

    by_size: Mapping[Size, Values]
    references: Array

    def encode(self) -> dict[str, Any]:
        """Plain values, to be kept in a file."""
        sizes = [[size, {name: array.tolist() for name, array in vars(v).items()}] for size, v in self.by_size.items()]
        return {"sizes": sizes, "references": self.references.tolist()}

    @classmethod
    def decode(cls, plain: Mapping[str, Any]) -> "Outcome":
        """From what `encode` made."""
        by_size = {
            tuple(size) if isinstance(size, list) else size: Values(**{k: np.array(v) for k, v in of_size.items()})
            for size, of_size in plain["sizes"]
        }
        return cls(by_size, np.array(plain["references"]))

    @property
    def behaviour(self) -> float:
        """What clinicians reach, mean over sites."""
        return float(self.references[:, 0].mean())

    @property
    def span(self) -> float:
        """How much better than clinicians a policy can be, mean over sites."""
        return float((self.references[:, 2] - self.references[:, 0]).mean())

    def mean_of(self, size: Size, method: str) -> float:
        """The mean value of a method over sites."""
        return float(self.by_size[size].methods[:, METHODS.index(method)].mean())


@dataclass(frozen=True)
class Row:
    """One cell, a world at one size: what methods reach, in percent of `span`, (optimum − behaviour).

    `ratio` is what FDTR (auto) gains over what the best fixed setting gains, NaN where that is under 5% of the span;
    `less_before` and `less_constant` are FDTR (auto) less the rule before and the best constant action. `harmed` is the
    share of sites that are worse than alone by 5% of the span, `sharing` the mean w, `more_cautious` the share of sites
    that took the larger pessimism. `best` names the fixed setting that is best on all replications.
    """

    purpose: str
    world: str
    shape: str
    n: str
    span: float
    auto: float
    before: float
    ladder_c: float
    ladder_noise: float
    ladder_more_noise: float
    alone: float
    q_learning: float
    constant: float
    fixed: float
    ratio: float
    ratio_low: float
    ratio_high: float
    less_before: float
    less_before_low: float
    less_before_high: float
    less_constant: float
    less_constant_low: float
    less_constant_high: float
    harmed: float
    harmed_high: float
    sharing: float
    more_cautious: float
    best: str

    @property
    def called(self) -> str:
        """The cell by name."""
        return f"{self.world}, {self.shape}, n = {self.n}"

    @property
    def enough(self) -> bool:
        """Whether sites have at least `ENOUGH` patients; those of unequal sites count as enough."""
        return not self.n.isdecimal() or int(self.n) >= ENOUGH

    @property
    def reaches(self) -> bool:
        """Whether auto gains as much of the best fixed setting's gain as it should."""
        return self.ratio >= LEAST if np.isfinite(self.ratio) else self.auto - self.fixed >= -ALLOWED_LOSS


def run_all(
    plan: Plan, processes: int | None = None, progress: Progress = ignore_progress, keep: Path | None = None
) -> "list[tuple[Case, Sequence[Outcome]]]":
    """The outcomes of every case. They are kept in the file `keep` and not computed again."""
    kept = Kept[Trial, Outcome](keep, lambda trial: trial.key, Outcome.encode, Outcome.decode) if keep else None
    trials = plan.trials()
    # One replication of every case before the second of any: an interrupted run has some of each.
    by_replication = [trial for r in range(plan.replications) for trial in trials[r :: plan.replications]]
    results = replicate(run_trial, by_replication, "tuning", processes, progress, kept)
    by_key = {trial.key: outcome for trial, outcome in zip(by_replication, results, strict=True)}
    return plan.by_case([by_key[trial.key] for trial in trials])


def find(plan: Plan, by_case: "Sequence[tuple[Case, Sequence[Outcome]]]") -> Finding:
    """Compare what "auto" chooses with the rule before, with going alone, and with fixed settings."""
    rows = [row_of(case, n, outcomes) for case, outcomes in by_case for n in case.sizes or plan.sizes]
    return Finding(
        title="What tuning chooses",
        shows=[ASKED, *describe(rows), MESSAGES],
        tables=[Table("tuning", rows)],
        figures=[Figure("tuning", "What FDTR (auto) gains of the best fixed setting's gain", partial(_draw, rows))],
    )


def run_trial(trial: Trial) -> Outcome:
    """Choose settings, and fit every fixed one, at every size."""
    drawn, tables = draw(trial)
    by_size = {n: _value_all(drawn, read(drawn.world, n, seeds).by_site()) for n, seeds in tables.items()}
    references = [drawn.references_at(k) for k in range(len(drawn.patients))]
    return Outcome(by_size, np.array([[r.behaviour, r.constant, r.optimum] for r in references]))


def _value_all(drawn: Drawn, sites: Mapping[str, Trajectories]) -> Values:
    study = Study.model_validate(drawn.world.study())
    local = {site: fit_local(study, rows) for site, rows in sites.items()}
    total = combine(fit.summary for fit in local.values())
    methods, fixed, sharing, cautious = [], [], [], []
    for place, (site, rows) in enumerate(sites.items()):
        own = local[site]
        fits = _Fits(rows, study, message_settings(study), others_in(total, own.summary))
        auto = fit_federated(study, rows, total, own.summary)
        acts: list[Act] = [
            auto.policy.act,
            fits.acts(fits.chosen_before(), (USUAL_C,))[0],
            *fits.acts(auto.chosen, PESSIMISMS),
            own.policy.act,
            fit_q_learning(study, rows)[Q_LEARN_H].act,
        ]
        acts += [act for candidate in FIXED for act in fits.acts(candidate, PESSIMISMS)]
        values = drawn.values_at(place, acts)
        methods.append(values[: len(METHODS)])
        fixed.append(values[len(METHODS) :])
        sharing.append(auto.chosen.sharing)
        cautious.append(auto.settings.pessimism == MORE_NOISE)
    return Values(np.array(methods), np.array(fixed), np.array(sharing), np.array(cautious))


@dataclass(frozen=True, eq=False)
class _Fits:
    """Fits of one site, with any candidate and several pessimisms at once."""

    rows: Trajectories
    study: Study
    settings: Settings
    others: Others

    def acts(self, candidate: Candidate, pessimisms: Sequence[float | NoiseUnits]) -> list[Act]:
        """What the policies do, one for each pessimism."""
        at = replace(self.settings, ridge=candidate.ridge)
        fits = fit_with_each(
            self.rows, self.study.feature_map, at, self.others, candidate.sharing, candidate.share, pessimisms
        )
        return [rule_of(fit, self.study) for fit in fits]

    def chosen_before(self) -> Candidate:
        """What the rule before would take."""
        plain = Settings(pessimism=0.0, ridge=1e-5, failure_probability=0.5, misspecification=0.0)
        alone = fit_with_each(self.rows, self.study.feature_map, plain, self.others, 0.0, "value", (0.0,))[0]
        scores = score_together(self.study, self.rows, self.others, CANDIDATES_BEFORE, [alone.bounds])
        return CANDIDATES_BEFORE[int((scores.error + scores.contrast).sum(axis=1).argmin())]


def size_name(n: Size) -> str:
    """Patients a site, in words.

    >>> size_name(200), size_name((50, 800, 5000))
    ('200', '50 to 5000')
    """
    return str(n) if isinstance(n, int) else f"{min(n)} to {max(n)}"


def row_of(case: Case, n: Size, outcomes: Sequence[Outcome]) -> Row:
    """One cell. The best fixed setting of one half of the replications is scored on the other; both ways, averaged."""
    values = [outcome.by_size[n] for outcome in outcomes]
    span = float(np.mean([outcome.span for outcome in outcomes]))
    behaviour, constant = (np.array([o.references[:, column].mean() for o in outcomes]) for column in (0, 1))
    settings = np.array([v.fixed.mean(axis=0) for v in values])
    by_method = {m: np.array([outcome.mean_of(n, m) for outcome in outcomes]) for m in METHODS}
    auto, fixed = by_method[FDTR_AUTO], _best_of_other_half(settings)

    def reached(value: Array) -> float:
        return float(100 * (value - behaviour).mean() / span)

    def less(value: Array) -> Interval:
        return mean(100 * (auto - value) / span)

    ratio = Interval(np.nan, np.nan, np.nan)
    if reached(fixed) > 100 * SMALL:
        rng = np.random.default_rng(seeds_of(0, EXPERIMENT, case.number, int(np.max(n))))
        ratio = bootstrap(
            np.column_stack([auto, fixed]) - behaviour[:, None], lambda gain: float(gain[0] / gain[1]), rng
        )
    together, alone = (np.array([v.methods[:, METHODS.index(m)] for v in values]) for m in (FDTR_AUTO, LDTR_AUTO))
    harmed = share(together < alone - HARM * span)
    return Row(
        case.purpose, case.called, case.shape, size_name(n), span,
        reached(auto), reached(by_method[BEFORE]), reached(by_method[LADDERS[0]]), reached(by_method[LADDERS[1]]),
        reached(by_method[LADDERS[2]]), reached(by_method[LDTR_AUTO]), reached(by_method[Q_LEARN_H]),
        reached(constant), reached(fixed), *ratio.ends, *less(by_method[BEFORE]).ends, *less(constant).ends,
        harmed.estimate, harmed.high,
        float(np.mean([v.sharing for v in values])), float(np.mean([v.cautious for v in values])),
        _name(*list(product(FIXED, PESSIMISMS))[int(settings.mean(axis=0).argmax())]),
    )  # fmt: skip


def _best_of_other_half(settings: Array) -> Array:
    """What the setting reaches that is best on the other half of the replications, (R,); `settings` (R, settings)."""
    reached, even = np.empty(len(settings)), np.arange(len(settings)) % 2 == 0
    for half in (even, ~even):
        reached[~half] = settings[~half, settings[half].mean(axis=0).argmax()]
    return reached


def _name(candidate: Candidate, pessimism: float | NoiseUnits) -> str:
    how = f"noise = {pessimism.noise:g}" if isinstance(pessimism, NoiseUnits) else f"c = {pessimism:g}"
    shared = f"w = {candidate.sharing:g}, {candidate.share}s" if candidate.sharing else "alone"
    return f"{how}, λ = {candidate.ridge:g}, {shared}"


def describe(rows: Sequence[Row]) -> list[str]:
    """What the rows show, for each purpose: few and enough patients, and every cell that misses something."""
    sentences = []
    for purpose in get_args(Purpose):
        of_purpose = [row for row in rows if row.purpose == purpose]
        if not of_purpose:
            continue
        worlds = dict.fromkeys(row.world for row in of_purpose)
        sentences.append(f"Worlds for {purpose}, {len(of_purpose)} cells (world × n): {'; '.join(worlds)}.")
        few = [row for row in of_purpose if not row.enough]
        enough = [row for row in of_purpose if row.enough]
        sentences += [_summary(f"{purpose.capitalize()}, n < {ENOUGH}", few)] if few else []
        sentences += [_summary(f"{purpose.capitalize()}, n ≥ {ENOUGH}", enough)] if enough else []
        sentences += [sentence for row in enough for sentence in _missed(row)]
    return sentences


def _summary(where: str, rows: Sequence[Row]) -> str:
    """What holds on the whole in some cells."""
    ratios = [row.ratio for row in rows if np.isfinite(row.ratio)]
    spread = f" (median {np.median(ratios):.1%}, least {min(ratios):.1%})" if ratios else ""
    before = [row.less_before for row in rows]
    ahead, behind = sum(row.less_constant_low > 0 for row in rows), sum(row.less_constant_high < 0 for row in rows)
    harmed = [row.harmed for row in rows]
    return (
        f"{where}: FDTR (auto) gains what is asked of what the best fixed setting gains in "
        f"{sum(row.reaches for row in rows)} of {len(rows)} cells{spread}. Against the rule before: "
        f"{min(before):+.2f}% to {max(before):+.2f}% of (optimum − behaviour), mean {np.mean(before):+.2f}%. Against "
        f"the best constant action: the interval lies above 0 in {ahead} cells, below 0 in {behind}. Sites worse than "
        f"alone by {HARM:.0%} of (optimum − behaviour): {np.mean(harmed):.1%} of site-runs, at most "
        f"{max(harmed):.1%} in a cell."
    )


def _missed(row: Row) -> list[str]:
    """What a cell misses."""
    sentences = []
    if not row.reaches:
        ratio = f"{row.ratio:.1%} ({row.ratio_low:.1%} to {row.ratio_high:.1%})"
        fault = f"Less than {LEAST:.0%}: {row.called}, {ratio}"
        if not np.isfinite(row.ratio):
            fault = f"More than {ALLOWED_LOSS:g}% below the best fixed setting: {row.called}"
        sentences.append(
            f"{fault}; auto reaches {row.auto:.1f}% of (optimum − behaviour), the best fixed setting ({row.best}) "
            f"{row.fixed:.1f}%."
        )
    if row.less_before < -ALLOWED_LOSS:
        sentences.append(
            f"Behind the rule before by more than {ALLOWED_LOSS:g}%: {row.called}, {row.less_before:+.2f}% "
            f"({row.less_before_low:+.2f}% to {row.less_before_high:+.2f}%)."
        )
    if row.harmed > RARELY:
        sentences.append(f"Harmed more often than {RARELY:.0%}: {row.called}, {row.harmed:.1%} of site-runs.")
    return sentences


def _draw(rows: Sequence[Row]) -> "altair.TopLevelMixin":
    from experiments import charts

    return charts.ratios_by_world(rows, LEAST)
