"""What a site's policies are worth to its own patients, honestly: nobody is valued by a policy fitted to them.

Patients are split into folds. On all folds but one every policy is fitted anew, tuning included, with the other sites'
sums as they were sent; the fold left out is treated by these policies. All patients together then make one estimate of
what such policies are worth, with propensities and Q from the same folds. Patients of one cluster share a fold, and
errors are clustered.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.disclosure import MethodValue, ValueFacts, ValueMessage, release_values
from fdtr.errors import TooFewClusters
from fdtr.evaluation.confounding import Sensitivity
from fdtr.evaluation.diagnostics import Diagnostics
from fdtr.evaluation.estimate import Comparison, Estimate, Method
from fdtr.evaluation.evaluator import BY_INFLUENCE, Evaluator, IntervalOptions
from fdtr.evaluation.markov import MarkovCheck
from fdtr.evaluation.propensity import Calibration
from fdtr.evaluation.targets import Behaviour, ByFold, Constant, PolicyLike, Target, as_target
from fdtr.learners.baselines import MajorityVote
from fdtr.policy import Policy
from fdtr.progress import Progress, ignore_progress
from fdtr.site.fits import fit_federated, fit_local, fit_q_learning
from fdtr.site.folds import evaluation_folds
from fdtr.site.private import refuse_values
from fdtr.site.tables import require_rows
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.trajectories import Trajectories

log = logging.getLogger("fdtr.site")

N_FOLDS = 5
Split = Literal["folds", "half"]
RELEASED: tuple[Method, ...] = ("wdr", "fqe")
"""Estimators that leave a site: doubly robust, and the linear model alone, which needs no weights."""

FDTR, LDTR, CLINICIANS = "FDTR", "LDTR", "Clinicians"


@dataclass(frozen=True, eq=False, repr=False)
class Voters:
    """The other sites' policies, for majority votes: they were fitted to nobody here."""

    local: Sequence[Policy]
    single: Sequence[Policy]


@dataclass(frozen=True, eq=False, repr=False)
class SiteEvaluation:
    """One site's patients and what each way of treating them is worth; `targets` by name, FDTR among them.

    `policies` are those of every method, by fold: the first was fitted to all patients but those of the first fold.
    """

    site: str
    evaluator: Evaluator
    targets: Mapping[str, Target]
    policies: Mapping[str, Sequence[PolicyLike]]

    def value(self, name: str, method: Method = "wdr", interval: IntervalOptions = BY_INFLUENCE) -> Estimate:
        """What a way of treating is worth."""
        return self.evaluator.value(self.targets[name], method, interval)

    def gain(self, over: str, method: Method = "wdr") -> Comparison:
        """How much more FDTR is worth than another way, on the same patients."""
        return self.evaluator.compare(self.targets[FDTR], self.targets[over], method)

    def diagnostics(self, name: str = FDTR) -> Diagnostics:
        """Weights and overlap of a way of treating."""
        return self.evaluator.diagnose(self.targets[name])

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """How strong unmeasured confounding would have to be to turn FDTR's difference from clinicians."""
        return self.evaluator.sensitivity(self.targets[FDTR])

    @property
    def clustered(self) -> bool:
        """Whether errors are by cluster, not by patient."""
        return self.evaluator.clusters is not None

    @property
    def calibration(self) -> Calibration:
        """Predicted against observed propensities."""
        return self.evaluator.calibration

    @property
    def markov(self) -> MarkovCheck:
        """Whether the step before helps to predict."""
        return self.evaluator.markov


def evaluate(
    study: Study,
    rows: Trajectories,
    policy: Target | PolicyLike,
    method: Method = "wdr",
    *,
    interval: IntervalOptions = BY_INFLUENCE,
    n_folds: int = N_FOLDS,
    **options: Any,
) -> Estimate:
    """What a given policy is worth to one site's patients, to whom it must not have been fitted.

    `method` is "pdis", "wis", "fqe", "dr" or "wdr". Propensities and Q are cross-fitted; the policy stays as it is: a
    policy of ours or a target of `fdtr.evaluation` (a constant action, what clinicians do, a softened policy). Where
    the study names a cluster column, folds and errors are by cluster. `options` are those of `Evaluator`: `steps`,
    `cap`, `propensities`, `ridge`.
    """
    require_rows(study, rows)
    folds = evaluation_folds(study, rows, n_folds)
    return _evaluator(study, rows, folds, **options).value(policy, method, interval)


def evaluate_site(
    study: Study,
    rows: Trajectories,
    total: Total,
    own: SiteSummary,
    voters: Voters | None = None,
    n_folds: int = N_FOLDS,
    split: Split = "folds",
    progress: Progress = ignore_progress,
) -> SiteEvaluation:
    """Every method on one site's patients, fitted to others of them; `own` is the summary as it was sent.

    `split` "folds": each of `n_folds` parts of the patients by policies fitted to the rest. "half", as in the paper:
    policies are fitted to one half, and the other half alone is valued. `voters`, where given, add the majority votes.
    """
    require_rows(study, rows)
    folds = evaluation_folds(study, rows, 2 if split == "half" else n_folds)
    held_out = [0] if split == "half" else list(range(int(folds.max()) + 1))
    fitted: dict[str, list[PolicyLike]] = {}
    for done, fold in enumerate(held_out):
        log.info("site %s: fitting without part %d of %d", rows.site, done + 1, len(held_out))
        progress("folds", done, len(held_out))
        for name, policy in _fit_to(study, rows, folds != fold, total, own, voters).items():
            fitted.setdefault(name, []).append(policy)
    progress("folds", len(held_out), len(held_out))
    if split == "half":
        rows = rows.select(folds == 0)
        folds = evaluation_folds(study, rows, n_folds)
    levels = study.feature_map.levels
    targets: dict[str, Target] = {
        name: as_target(policies[0], levels)
        if split == "half"
        else ByFold(folds, [as_target(policy, levels) for policy in policies])
        for name, policies in fitted.items()
    }
    labels = study.actions.labels or [f"{level:g}" for level in study.actions.levels]
    constants = {f"Always {label}": Constant(position) for position, label in enumerate(labels)}
    return SiteEvaluation(
        rows.site,
        _evaluator(study, rows, folds),
        {**targets, CLINICIANS: Behaviour(), **constants},
        fitted,
    )


def training_half(study: Study, rows: Trajectories) -> Trajectories:
    """Those of a site to whom policies are fitted where the others are valued: `split` "half"."""
    return rows.select(evaluation_folds(study, rows, 2) != 0)


def tell_values(study: Study, found: SiteEvaluation) -> ValueMessage:
    """Every method's value and standard error, as far as disclosure lets them leave the site."""
    refuse_values(study)
    facts = [
        ValueFacts(
            MethodValue(name, estimator, one.value, one.standard_error),
            float(one.effective_sample_size.min()),
            one.reason,
        )
        for name in found.targets
        for estimator in RELEASED
        for one in [found.value(name, estimator)]
    ]
    asked, n = study.disclosure, found.evaluator.rows.n_patients
    return release_values(found.site, study.fingerprint, n, facts, asked.min_patients, asked.min_effective_sample_size)


def _fit_to(
    study: Study, rows: Trajectories, chosen: NDArray[np.bool_], total: Total, own: SiteSummary, voters: Voters | None
) -> dict[str, PolicyLike]:
    try:
        return _fit_all(study, rows.select(chosen), total, own, voters)
    except TooFewClusters:
        raise TooFewClusters(
            f"Site {rows.site!r} has {rows.n_clusters} clusters: too few to hold some out and to tune on the rest. Fix "
            "ridge, sharing and share in the study, or give another cluster column in [columns], or none."
        ) from None


def _fit_all(
    study: Study, train: Trajectories, total: Total, own: SiteSummary, voters: Voters | None
) -> dict[str, PolicyLike]:
    alone, q = fit_local(study, train).policy, fit_q_learning(study, train)
    found: dict[str, PolicyLike] = {FDTR: fit_federated(study, train, total, own).policy, LDTR: alone, **q}
    if voters is not None:
        found["LDTR (MV)"] = MajorityVote("LDTR (MV)", (alone, *voters.local))
        found["Q-learn (1-MV)"] = MajorityVote("Q-learn (1-MV)", (q["Q-learn (1)"], *voters.single))
    return found


def _evaluator(study: Study, rows: Trajectories, folds: NDArray[np.intp], **options: Any) -> Evaluator:
    clusters = None if rows.clusters is None else rows.clusters.dictionary_encode().indices.to_numpy()
    return Evaluator(rows, study.feature_map, folds, clusters, **options)
