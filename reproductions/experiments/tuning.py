"""Does tuning choose well? Automatic settings against the rule before, going alone, and the best fixed settings.

In every replication each site chooses its settings as a study with defaults does. Beside it stand fixed settings (λ, w,
what is shared, pessimism), the same at all sites: the best of them on one half of the replications is scored on the
other half, and the other way round. Two other rules are kept here. The rule before: the least held-out error plus
contrast among 143 candidates, with V_ref from the site's own fit without a penalty, and c = 0.0005. The plain ladder:
the first rung within one standard error of the best, with V_ref from FDTR alone, noise = 0.03, few patients or not.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.comparison import (
    FDTR_AUTO,
    LDTR_AUTO,
    Q_LEARN_H,
    Case,
    Drawn,
    Plan,
    Size,
    Trial,
    all_cases,
    draw,
    hard_cases,
    read,
    rule_of,
)
from experiments.replications import Kept, Progress, ignore_progress, replicate
from fdtr import Study, Trajectories, combine, fit_federated, fit_local
from fdtr.learners import NoiseUnits, Others, Settings, fit_with_each
from fdtr.simulation import Act
from fdtr.site import fit_q_learning, message_settings, others_in, score_together
from fdtr.tuning import Candidate, candidates_of, choose

Array = NDArray[np.float64]

USUAL_C, NOISE, MORE_NOISE = 0.0005, NoiseUnits(0.03), NoiseUnits(0.1)
BEFORE, PLAIN = "FDTR (auto, before)", "FDTR (plain ladder)"
PESSIMISMS: tuple[float | NoiseUnits, ...] = (USUAL_C, NOISE, MORE_NOISE)
LADDERS = ("FDTR (ladder, c = 0.0005)", "FDTR (ladder, noise = 0.03)", "FDTR (ladder, noise = 0.1)")
"""λ and sharing as FDTR (auto) chooses them, with each pessimism."""

METHODS = (FDTR_AUTO, BEFORE, PLAIN, *LADDERS, LDTR_AUTO, Q_LEARN_H)
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

ENOUGH = 200
"""Patients a site from which on this is asked of automatic settings."""

DECIMALS = 6
"""Of values, far below their Monte-Carlo error, so that what is kept is small."""

EXPERIMENT = 3
"""Tells its seeds from those of other experiments."""


def plan_of(seed: int = 0) -> Plan:
    """All worlds, 20 replications: an even number, because halves are compared."""
    cases = [*all_cases(), *hard_cases()]
    return Plan(EXPERIMENT, replications=20, fresh=500, sizes=(50, 200, 500, 2000), seed=seed, cases=cases)


@dataclass(frozen=True, eq=False)
class Values:
    """Values of one replication at one size: `methods` (K, M) by site, `fixed` (settings,) mean over sites.

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


def run_all(
    plan: Plan, processes: int | None = None, progress: Progress = ignore_progress, keep: Path | None = None
) -> list[tuple[Case, Sequence[Outcome]]]:
    """The outcomes of every case. They are kept in the file `keep` and not computed again."""
    # What an outcome has to hold: a file with other columns is not read.
    columns = hashlib.sha256(repr((METHODS, FIXED, PESSIMISMS)).encode()).hexdigest()[:12]
    kept = None
    if keep:
        kept = Kept[Trial, Outcome](keep, lambda trial: f"{trial.key} {columns}", Outcome.encode, Outcome.decode)
    trials = plan.trials()
    # One replication of every case before the second of any: an interrupted run has some of each.
    by_replication = [trial for r in range(plan.replications) for trial in trials[r :: plan.replications]]
    results = replicate(run_trial, by_replication, "tuning", processes, progress, kept)
    by_key = {trial.key: outcome for trial, outcome in zip(by_replication, results, strict=True)}
    return plan.by_case([by_key[trial.key] for trial in trials])


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
        fits = _Fits(rows, study, message_settings(study), others_in(study, total, own.summary))
        auto = fit_federated(study, rows, total, own.summary)
        acts: list[Act] = [
            auto.policy.act,
            fits.acts(fits.chosen_before(), (USUAL_C,))[0],
            fits.acts(fits.chosen_plainly(), (NOISE,))[0],
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
    return Values(
        np.round(methods, DECIMALS), np.mean(fixed, axis=0).round(DECIMALS), np.array(sharing), np.array(cautious)
    )


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

    def chosen_plainly(self) -> Candidate:
        """What the plain ladder would take."""
        features, usual = self.study.feature_map, (self.settings.pessimism,)
        together = fit_with_each(self.rows, features, self.settings, self.others, 1.0, "value", usual)[0]
        scores = score_together(self.study, self.rows, self.others, candidates_of(), [together.bounds])
        return choose(scores, tolerance=1.0).candidate


def size_name(n: Size) -> str:
    """Patients a site, in words.

    >>> size_name(200), size_name((50, 800, 5000))
    ('200', '50 to 5000')
    """
    return str(n) if isinstance(n, int) else f"{min(n)} to {max(n)}"
