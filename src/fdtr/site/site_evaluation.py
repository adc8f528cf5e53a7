"""Values of a site's policies on its own patients; nobody is evaluated by a policy that was fitted to them.

Patients are split into folds. For each fold, every policy is fitted to the other folds, tuning included, with the other
sites' sums as they were sent; the fold left out is treated by these policies. All patients together then give one
estimate of the value of such policies, with propensities and Q from the same folds. Patients of one cluster share a
fold, and errors are clustered. At a site with very many patients a sample of each fold is valued.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, pairwise
from math import isfinite
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.threads import on_one_blas_thread
from fdtr.comparisons import CLINICIANS, FDTR, GAINS, LDTR, VERIFIED, Evidence
from fdtr.disclosure import MethodValue, Pair, ValueFacts, ValueMessage, ValueRules, release_values
from fdtr.errors import DisclosureError, TooFewClusters
from fdtr.evaluation.assessment import Assessment
from fdtr.evaluation.confounding import Sensitivity
from fdtr.evaluation.diagnostics import Diagnostics
from fdtr.evaluation.estimate import Estimate, Estimator
from fdtr.evaluation.evaluator import Evaluator
from fdtr.evaluation.fitted_q import RIDGE
from fdtr.evaluation.intervals import BY_INFLUENCE, IntervalOptions
from fdtr.evaluation.markov import MarkovCheck
from fdtr.evaluation.propensity import Calibration, Propensities, PropensitySteps
from fdtr.evaluation.step_arrays import step_arrays
from fdtr.evaluation.subgroups import Group, GroupGain
from fdtr.evaluation.targets import Behaviour, ByFold, Constant, PolicyLike, Target, as_target
from fdtr.evaluation.trees import fit_care
from fdtr.inference import holm
from fdtr.learners.baselines import MajorityVote
from fdtr.learners.finished_steps import goes_on
from fdtr.policy import Policy
from fdtr.progress import Progress, ignore_progress
from fdtr.site.fitting import fit_federated, fit_local, fit_q_learning, verify
from fdtr.site.rows import JUDGED, VALUED, Folds, draw_sample, evaluation_folds, require_rows, sampled
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.trajectories import Sample, Trajectories
from fdtr.verified_policy import VerifiedPolicy

log = logging.getLogger("fdtr.site")

N_FOLDS = 5
Split = Literal["folds", "half"]


@dataclass(frozen=True, eq=False, repr=False)
class Voters:
    """The other sites' policies, for majority votes; none was fitted to this site's patients."""

    local: Sequence[Policy]
    single: Sequence[Policy]


@dataclass(frozen=True, eq=False, repr=False)
class SiteEvaluation:
    """Values of several ways of treating one site's patients: `targets` by name, FDTR among them.

    `policies` holds each method's policies by fold: the first was fitted to all patients but those of the first fold.
    Of more than `fdtr.site.rows.VALUED` patients a `sample` is valued.
    """

    site: str
    evaluator: Evaluator
    targets: Mapping[str, Target]
    policies: Mapping[str, Sequence[Policy | VerifiedPolicy | MajorityVote]]
    _assessed: dict[tuple[str, str], Assessment] = field(default_factory=dict, init=False)

    def value(self, name: str, method: Estimator = "wdr", interval: IntervalOptions = BY_INFLUENCE) -> Estimate:
        """Value of the target `name`."""
        return self.evaluator.value(self.targets[name], method, interval)

    @on_one_blas_thread
    def assess(self, name: str, over: str | None = None) -> Assessment:
        """What can be said of the value of the target `name`, or of its paired gain `over` another."""
        key = (name, over or "")
        if key not in self._assessed:
            base = None if over is None else self.targets[over]
            self._assessed[key] = self.evaluator.assess(self.targets[name], base)
        return self._assessed[key]

    def diagnostics(self, name: str = FDTR) -> Diagnostics:
        """Weights and overlap of the target `name`."""
        return self.evaluator.diagnose(self.targets[name])

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """How strong unmeasured confounding would have to be to turn FDTR's difference from clinicians."""
        return self.evaluator.sensitivity(self.targets[FDTR])

    @property
    def folds(self) -> NDArray[np.intp]:
        """The fold of each patient who is evaluated, (n,), counted from 0."""
        return self.evaluator.data.folds

    @property
    def sample(self) -> Sample | None:
        """How many of the patients held out are valued; None where all are."""
        return self.evaluator.rows.sample

    @property
    def clustered(self) -> bool:
        """Whether standard errors are by cluster rather than by patient."""
        return self.evaluator.clusters is not None

    @property
    def calibration(self) -> Calibration:
        """Predicted against observed propensities."""
        return self.evaluator.calibration

    @property
    def markov(self) -> MarkovCheck:
        """Whether the previous step helps to predict, which a Markov model denies."""
        return self.evaluator.markov


@on_one_blas_thread
def evaluate(
    study: Study,
    rows: Trajectories,
    policy: Target | PolicyLike,
    method: Estimator = "wdr",
    *,
    interval: IntervalOptions = BY_INFLUENCE,
    n_folds: int = N_FOLDS,
    propensities: Propensities | None = None,
    steps: PropensitySteps = "auto",
    cap: float | None = None,
    ridge: float = RIDGE,
) -> Estimate:
    """Estimate V^π, the expected sum of mapped rewards if `policy` treated one site's patients.

    The policy must not have been fitted to these patients. It is a `Policy` or a target of `fdtr.evaluation` (a
    constant action, what clinicians do, a softened policy). `method` is "pdis", "wis", "fqe", "dr" or "wdr".
    Propensities and Q are cross-fitted over `n_folds`; if the study names a cluster column, folds and errors are by
    cluster. `propensities` are used instead of fitted ones; `steps` says whether each step has its own propensity
    model; `cap` bounds the importance weights; `ridge` is λ of fitted Q. Of more than `fdtr.site.rows.VALUED` patients
    a sample is taken, unless there are `propensities`. `help(fdtr)` has an example.
    """
    require_rows(study, rows)
    folds = evaluation_folds(study, rows, n_folds)
    if propensities is None:
        rows, folds = _sampled(study, rows, folds)
    evaluator = Evaluator(rows, study.feature_map, folds, rows.cluster_codes(), propensities, steps, cap, ridge)
    return evaluator.value(policy, method, interval)


def _sampled(study: Study, rows: Trajectories, folds: Folds) -> tuple[Trajectories, Folds]:
    """The patients who are valued, and their folds."""
    chosen = draw_sample(study, rows, VALUED)
    return (rows, folds) if chosen.all() else (rows.draw(chosen), folds[chosen])


@goes_on
@on_one_blas_thread
def evaluate_site(
    study: Study,
    rows: Trajectories,
    total: Total,
    own: SiteSummary | None,
    voters: Voters | None = None,
    n_folds: int = N_FOLDS,
    split: Split = "folds",
    progress: Progress = ignore_progress,
) -> SiteEvaluation:
    """Evaluate every method on one site's patients, each time fitted to other patients of the site.

    `own` is the site's summary as it was sent; None for a site that is not in the total and receives only. With `split`
    "folds", each of `n_folds` folds is evaluated with policies that were fitted to the rest. With "half", as in the
    paper, policies are fitted to one half of the patients, and only the other half is evaluated. `voters` add the
    majority votes.
    """
    require_rows(study, rows)
    folds = evaluation_folds(study, rows, 2 if split == "half" else n_folds)
    held_out = [0] if split == "half" else list(range(int(folds.max()) + 1))
    fitted: dict[str, list[Policy | VerifiedPolicy | MajorityVote]] = {}
    for done, fold in enumerate(held_out):
        log.info("site %s: fitting without part %d of %d", rows.site, done + 1, len(held_out))
        progress("folds", done, len(held_out))
        for name, policy in _fit_all(study, rows.select(folds != fold), total, own, voters).items():
            fitted.setdefault(name, []).append(policy)
    progress("folds", len(held_out), len(held_out))
    if split == "half":
        rows = rows.select(folds == 0)
        folds = evaluation_folds(study, rows, n_folds)
    rows, folds = _sampled(study, rows, folds)
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
        Evaluator(rows, study.feature_map, folds, rows.cluster_codes()),
        {**targets, CLINICIANS: Behaviour(), **constants},
        fitted,
    )


def training_half(study: Study, rows: Trajectories) -> Trajectories:
    """The half of a site's patients to whom policies are fitted with `split` "half"."""
    return rows.select(evaluation_folds(study, rows, 2) != 0)


@on_one_blas_thread
def gains_by_group(study: Study, evaluation: SiteEvaluation) -> list[GroupGain]:
    """The verified part's gain over clinicians in the groups of [evaluation]; p-values are adjusted (Holm)."""
    groups = list(_groups(study, evaluation))
    if not groups:
        return []
    target, usual = evaluation.targets[VERIFIED[FDTR]], evaluation.targets[CLINICIANS]
    found = evaluation.evaluator.gains_in(groups, target, usual, study.disclosure.min_patients)
    adjusted = holm([gain.p_value for gain in found])
    return [replace(gain, p_value=float(p)) for gain, p in zip(found, adjusted, strict=True)]


def _groups(study: Study, evaluation: SiteEvaluation) -> Iterator[Group]:
    """Bands or levels of the declared covariates at the first step, in raw units."""
    first = evaluation.evaluator.data.arrays.states[0]
    names = [covariate.name for covariate in study.covariates]
    for name, cuts in study.evaluation.groups.items():
        values = first[names.index(name)]
        if not cuts:
            for level in np.unique(values):
                yield Group(name, f"{level:g}", values == level)
            continue
        edges = [-np.inf, *cuts, np.inf]
        for low, high in pairwise(edges):
            label = (
                f"below {high:g}"
                if low == -np.inf
                else f"{low:g} and more"
                if high == np.inf
                else f"{low:g} to {high:g}"
            )
            yield Group(name, label, (values >= low) & (values < high))


@on_one_blas_thread
def summarize_values(study: Study, evaluation: SiteEvaluation) -> ValueMessage:
    """The gains and values, with errors and verdicts, that the disclosure rules let leave the site."""
    refuse_values(study)
    values = dict.fromkeys([CLINICIANS, *VERIFIED.values(), FDTR, LDTR, *evaluation.targets])  # told in this order
    pairs = [(CLINICIANS, ""), *GAINS, *((name, "") for name in values if name != CLINICIANS)]
    facts = [_facts(name, over, evaluation.assess(name, over or None)) for name, over in pairs]
    section, n = study.disclosure, evaluation.evaluator.rows.n_patients
    rules = ValueRules(section.min_patients, section.min_effective_sample_size, section.min_cell)
    methods = list(dict.fromkeys(fact.estimate.method for fact in facts))
    counts = {two: _pair(evaluation, *two) for two in combinations(methods, 2)}
    return release_values(evaluation.site, study.fingerprint, n, facts, rules, study.evaluation_fingerprint, counts)


def _pair(evaluation: SiteEvaluation, first: str, second: str) -> Pair:
    targets = evaluation.targets
    differing = evaluation.evaluator.count_differing(targets[first], targets[second])
    return Pair(differing, evaluation.evaluator.rows.n_patients - differing)


def _facts(name: str, over: str, found: Assessment) -> ValueFacts:
    """What the rules look at in one value, or in one gain over another method."""
    verdict, tolerance = str(found.verdict), found.tolerance if isfinite(found.tolerance) else 0.0
    estimate = MethodValue(name, found.estimator, found.value, found.standard_error, over, verdict, tolerance)
    doubt = found.reason if found.verdict == Evidence.NONE else ""
    return ValueFacts(estimate, found.effective_sample_size, doubt, found.n_differing, found.n_unchanged)


def refuse_values(study: Study) -> None:
    """Refuse to release values, which carry no noise, in a study with differential privacy."""
    if study.disclosure.epsilon is not None:
        raise DisclosureError(
            "NOISE",
            "The study asks for differential privacy (epsilon), and values of policies would leave this site without "
            "noise. Nothing was written. Without --out they are shown here alone.",
        )


def _fit_all(
    study: Study,
    train: Trajectories,
    total: Total,
    own: SiteSummary | None,
    voters: Voters | None,
) -> dict[str, Policy | VerifiedPolicy | MajorityVote]:
    """Every method, fitted to the patients of `train`."""
    try:
        alone, q = fit_local(study, train), fit_q_learning(study, train)
        receives = own is None and train.site not in total.sites
        together = fit_federated(study, train, total, own, receive_only=receives)
    except TooFewClusters:
        raise TooFewClusters(
            f"Site {train.site!r} has {train.n_clusters} clusters without those that are held out: too few to tune on. "
            "Fix ridge, sharing and share in the study, or give another cluster column in [columns], or none."
        ) from None
    policies: dict[str, Policy | VerifiedPolicy | MajorityVote] = {FDTR: together.policy, LDTR: alone.policy, **q}
    if voters is not None:
        policies["LDTR (MV)"] = MajorityVote("LDTR (MV)", (alone.policy, *voters.local))
        policies["Q-learn (1-MV)"] = MajorityVote("Q-learn (1-MV)", (q["Q-learn (1)"], *voters.single))
    train = sampled(study, train, JUDGED)
    care = fit_care(step_arrays(train), study.feature_map, train.cluster_codes())
    for fit in (together, alone):
        verified = verify(study, train, fit, care)
        policies[verified.method] = verified
    return policies
