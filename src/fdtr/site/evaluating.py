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

import numpy as np
from numpy.typing import NDArray

from fdtr.disclosure import MethodValue, ValueFacts, ValueMessage, release_values
from fdtr.evaluation.calibration import Calibration
from fdtr.evaluation.confounding import Sensitivity
from fdtr.evaluation.diagnostics import Diagnostics
from fdtr.evaluation.estimate import Comparison, Estimate, Method
from fdtr.evaluation.evaluator import BY_INFLUENCE, Evaluator, IntervalOptions
from fdtr.evaluation.markov import MarkovCheck
from fdtr.evaluation.target import Acting, Behaviour, ByFold, Constant, Target, as_target
from fdtr.learners.voting import MajorityVote
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
    policies: Mapping[str, Sequence[Acting]]

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
    study: Study, rows: Trajectories, policy: Target | Acting, method: Method = "wdr", n_folds: int = N_FOLDS
) -> Estimate:
    """What a given policy is worth to one site's patients, to whom it must not have been fitted.

    `method` is "pdis", "wis", "fqe", "dr" or "wdr". Propensities and Q are cross-fitted; the policy stays as it is.
    Where the study names a cluster column, folds and errors are by cluster.
    """
    require_rows(study, rows)
    return _evaluator(study, rows, evaluation_folds(study, rows, n_folds)).value(policy, method)


def evaluate_site(
    study: Study,
    rows: Trajectories,
    total: Total,
    own: SiteSummary,
    voters: Voters | None = None,
    n_folds: int = N_FOLDS,
    progress: Progress = ignore_progress,
) -> SiteEvaluation:
    """Every method on one site's patients, each fitted to the other folds; `own` is the summary as it was sent.

    `voters`, where given, add the majority votes.
    """
    require_rows(study, rows)
    folds = evaluation_folds(study, rows, n_folds)
    n_folds = int(folds.max()) + 1
    fitted: dict[str, list[Acting]] = {}
    for fold in range(n_folds):
        log.info("site %s: fitting without fold %d of %d", rows.site, fold + 1, n_folds)
        progress("folds", fold, n_folds)
        for name, policy in _fit_all(study, rows.select(folds != fold), total, own, voters).items():
            fitted.setdefault(name, []).append(policy)
    progress("folds", n_folds, n_folds)
    levels = study.feature_map.levels
    targets: dict[str, Target] = {
        name: ByFold(folds, [as_target(policy, levels) for policy in policies]) for name, policies in fitted.items()
    }
    labels = study.actions.labels or [f"{level:g}" for level in study.actions.levels]
    constants = {f"Always {label}": Constant(position) for position, label in enumerate(labels)}
    return SiteEvaluation(
        rows.site,
        _evaluator(study, rows, folds),
        {**targets, CLINICIANS: Behaviour(), **constants},
        fitted,
    )


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


def _fit_all(
    study: Study, train: Trajectories, total: Total, own: SiteSummary, voters: Voters | None
) -> dict[str, Acting]:
    alone, q = fit_local(study, train).policy, fit_q_learning(study, train)
    found: dict[str, Acting] = {FDTR: fit_federated(study, train, total, own).policy, LDTR: alone, **q}
    if voters is not None:
        found["LDTR (MV)"] = MajorityVote("LDTR (MV)", (alone, *voters.local))
        found["Q-learn (1-MV)"] = MajorityVote("Q-learn (1-MV)", (q["Q-learn (1)"], *voters.single))
    return found


def _evaluator(study: Study, rows: Trajectories, folds: NDArray[np.intp]) -> Evaluator:
    clusters = None if rows.clusters is None else rows.clusters.dictionary_encode().indices.to_numpy()
    return Evaluator(rows, study.feature_map, folds, clusters)
