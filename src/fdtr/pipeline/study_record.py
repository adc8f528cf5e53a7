"""The record of a study: everything that it found, as plain values, from fits, checks and estimates."""

import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fdtr import __version__
from fdtr.comparisons import FDTR, GAINS, VERIFIED, Evidence
from fdtr.disclosure import Verdict
from fdtr.evaluation import Estimate, Estimator
from fdtr.evaluation.assessment import Assessment
from fdtr.evaluation.subgroups import GroupGain
from fdtr.hub import pool_methods
from fdtr.inference import heterogeneity, infer_effects, raw_factors
from fdtr.inference.near_ties import NearTies
from fdtr.inference.shared_effects import gain_from_sharing, theorem3_bound
from fdtr.report import record
from fdtr.site.fitting import FederatedFit, LocalFit
from fdtr.site.settings_choice import message_settings
from fdtr.site.site_check import SiteCheck, Variation
from fdtr.site.site_evaluation import SiteEvaluation, Split, gains_by_group
from fdtr.study import Study
from fdtr.summary import Total
from fdtr.trajectories import Sample
from fdtr.tuning import Choice

Array = NDArray[np.float64]

ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
SHOWN: tuple[Estimator, ...] = ("wdr", "fqe")
"""Estimators whose cautions about FDTR the report lists."""

_LIBRARIES = ("numpy", "scipy", "scikit-learn")


@dataclass(frozen=True)
class Practice:
    """What a site's policy would do for the patients it was fitted on, beside what was done.

    `recommended`, `given` and `with_part` (H, A) are shares of patients by step and action; the last where the verified
    part advises and clinicians decide the rest. It advises the share `advised` (H,) of patients. Agreement is the share
    of decisions in which the policy does the same as practice, and as each baseline.
    """

    recommended: Array
    given: Array
    with_part: Array
    advised: Array
    agreement_with_practice: float
    agreement_with_baselines: Mapping[str, float]


@dataclass(frozen=True, eq=False, repr=False)
class SiteEstimates:
    """Everything that is estimated at one site.

    `estimates` are those of every way of treating by every estimator. `assessments` have what can be said of each
    value, and of each gain, by (method, what it is over). They are of `n` patients: a `sample`, or all if None.
    """

    estimates: Mapping[str, Mapping[Estimator, Estimate]]
    assessments: Mapping[tuple[str, str], Assessment]
    subgroups: Sequence[GroupGain]
    n: int
    sample: Sample | None
    clustered: bool
    trust: record.Trust


def value_site(study: Study, evaluation: SiteEvaluation) -> SiteEstimates:
    """Compute all estimates at one site."""
    labels = study.actions.labels
    estimates = {name: {e: evaluation.value(name, e) for e in ESTIMATORS} for name in evaluation.targets}
    assessments = {
        (method, over): evaluation.assess(method, over or None)
        for method, over in (*GAINS, *((name, "") for name in evaluation.targets))
    }
    return SiteEstimates(
        estimates=estimates,
        assessments=assessments,
        subgroups=gains_by_group(study, evaluation),
        n=evaluation.evaluator.rows.n_patients,
        sample=evaluation.sample,
        clustered=evaluation.clustered,
        trust=_trust(evaluation, [estimates[FDTR][estimator] for estimator in SHOWN], labels, assessments),
    )


def study_record(
    study: Study,
    total: Total,
    local: Mapping[str, LocalFit],
    federated: Mapping[str, FederatedFit],
    sites: dict[str, record.Site],
    values: Mapping[str, SiteEstimates],
    split: Split,
) -> record.Record:
    """Everything that a study found, as plain values."""
    names = study.feature_map.names[: study.feature_map.n_shared]
    bound = theorem3_bound(total.significant, study.feature_map.n_features, message_settings(study))
    return record.Record(
        fdtr=__version__,
        versions={"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}},
        study=study.name,
        fingerprint=study.fingerprint,
        definition=study.public,
        sites=sites,
        split=split,
        values=[
            value_record(site, estimate, method, site_values)
            for site, site_values in values.items()
            for method, estimates in site_values.estimates.items()
            for estimate in estimates.values()
        ],
        assessments=[part for site, of_site in values.items() for part in assessment_records(site, of_site)],
        means=_means(values, study.horizon),
        subgroups=[group for site, of_site in values.items() for group in subgroup_records(site, of_site.subgroups)],
        shared_effects=_shared_effects(study, total, names),
        heterogeneity=_differences(total) if names else [],
        gains=_gains(total, local, names),
        shared_coefficients=_shared_coefficients(names, total, federated),
        theorem3_bound=bound.tolist() if names else [],
    )


def site_record(
    fit: FederatedFit,
    check: SiteCheck,
    practice: Practice,
    ties: NearTies,
    variations: Sequence[Variation],
    verified_on: Sample | None,
) -> record.Site:
    """What a study found at one site before it was valued, as plain values."""
    return record.Site.of(
        check,
        practice,
        patients=check.n_patients,
        rows=check.n_rows,
        actions=check.action_counts,
        transitions=[test.p_value for test in check.transitions],
        disclosure=_broken_rules(check),
        settings=fit.policy.settings,
        sharing=fit.choice.in_words(fit.policy.site),
        ladder=_ladder(fit.choice),
        few=fit.choice.few,
        usual_care=fit.choice.usual_care,
        nearness=fit.choice.usual_care.in_words(fit.policy.site) if fit.choice.usual_care else "",
        variations=variations,
        near_ties=ties.shares,
        withheld=ties.withheld,
        verified_on=verified_on,
    )


def _broken_rules(check: SiteCheck) -> list[record.BrokenRule]:
    """Each rule that is broken, with the step at which it is missed by most."""
    broken: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in (*check.in_the_way, *check.repaired):
        broken.setdefault((verdict.rule, verdict.otherwise), []).append(verdict)
    records = []
    for verdicts in broken.values():
        worst = max(verdicts, key=lambda verdict: verdict.excess)
        steps = [verdict.step for verdict in verdicts if verdict.step is not None]
        records.append(record.BrokenRule.of(worst, steps=steps, worst=worst.step))
    return records


def _ladder(choice: Choice) -> list[record.Rung]:
    return [
        record.Rung.of(
            rung.candidate,
            rung,
            excess=choice.relative(rung.excess),
            tolerance=choice.relative(rung.tolerance),
            chosen=rung.candidate == choice.candidate,
        )
        for rung in choice.rungs
    ]


def value_record(site: str, estimate: Estimate, method: str, estimates: SiteEstimates) -> record.Value:
    """One of a site's `estimates` as plain values; clusters are counted where errors are by cluster."""
    return record.Value.of(
        estimate,
        site=site,
        method=method,
        estimator=estimate.method,
        n_clusters=estimate.n_clusters if estimates.clustered else None,
        verdict=estimates.assessments[method, ""].verdict,
    )


def _trust(
    evaluation: SiteEvaluation,
    estimates: Iterable[Estimate],
    labels: Sequence[str],
    assessments: Mapping[tuple[str, str], Assessment],
) -> record.Trust:
    """How far FDTR's `estimates`, and the `assessments`, at one site can be trusted."""
    diagnostics, bounds = evaluation.diagnostics(), evaluation.sensitivity
    calibration, markov = evaluation.calibration, evaluation.markov
    return record.Trust.of(
        diagnostics.weights,
        diagnostics.overlap,
        present=diagnostics.present,
        mean_weight=diagnostics.weights.mean,
        odds=bounds.odds,
        odds_low=bounds.low,
        odds_high=bounds.high,
        practice=bounds.behaviour,
        tipping_odds=bounds.tipping_odds if math.isfinite(bounds.tipping_odds) else math.nan,
        confounding_doubt=bounds.doubt,
        calibration={
            label: {"predicted": predicted, "observed": observed, "count": count}
            for label, predicted, observed, count in zip(
                labels, calibration.predicted, calibration.observed, calibration.count, strict=True
            )
        },
        past=[markov.reward, markov.value],
        warnings=list(dict.fromkeys(caution.sentence for estimate in estimates for caution in estimate.warnings)),
        checks=[_check(evaluation, name, assessments[name, ""]) for name in (VERIFIED[FDTR], FDTR)],
    )


def _check(evaluation: SiteEvaluation, name: str, assessed: Assessment) -> record.Check:
    """What the value of one method rests on. No model is fitted for it but those that the value needed."""
    target = evaluation.evaluator.evaluation(evaluation.targets[name])
    behind, misfit = target.patients_behind(), target.richer.misfit
    return record.Check(
        method=name,
        advised_share=target.advised_share,
        effective_sample_size=target.weights.effective_sample_size.tolist(),
        mean_weight=target.weights.mean.tolist(),
        patients_behind=behind if math.isfinite(behind) else math.nan,
        misfit=misfit if misfit != 0.0 else math.nan,
        usual_misfit=target.richer.usual_misfit,
        unexplained=target.unexplained if math.isfinite(assessed.misfit) else math.nan,
    )


def assessment_records(site: str, estimates: SiteEstimates) -> list[record.Assessment]:
    """What can be said of the gains and values at one site, as plain values."""
    return [
        record.Assessment.of(assessed, site=site, method=method, over=over, n=estimates.n)
        for (method, over), assessed in estimates.assessments.items()
    ]


def subgroup_records(site: str, gains: Sequence[GroupGain]) -> list[record.Subgroup]:
    """The verified gain in each declared group of one site; of a group that is withheld, no number at all."""
    return [
        record.Subgroup.of(
            gain,
            site=site,
            method=VERIFIED[FDTR],
            group=gain.covariate,
            n=None if gain.reason else gain.n,
        )
        for gain in gains
    ]


def _means(values: Mapping[str, SiteEstimates], horizon: int) -> list[record.MeanOverSites]:
    """Each gain and each value over the sites where it has a number."""
    numbers: dict[tuple[str, str], dict[str, tuple[Assessment, int]]] = {}
    for site, estimates in values.items():
        for pair, assessed in estimates.assessments.items():
            by_site = numbers.setdefault(pair, {})
            if assessed.verdict != Evidence.NONE:
                by_site[site] = assessed, estimates.n
    return [
        record.MeanOverSites.of(mean.pooling, mean, warnings=[warning.sentence for warning in mean.pooling.warnings])
        for mean in pool_methods(numbers, list(values), horizon)
        if mean.pooling.sites
    ]


def _shared_effects(study: Study, total: Total, names: Sequence[str]) -> list[record.Effect]:
    """θ⁰ of every step as an effect on the reward, with intervals, bands and p-values."""
    effects = infer_effects(total.significant)
    intervals, bands = effects.intervals(), effects.bands()
    raw = raw_factors(study.feature_map, *study.reward.range) if names else np.zeros(0)
    return [
        record.Effect(
            step=h,
            feature=name,
            identified=bool(effects.identified[h, j]),
            estimate=effects.estimates[h, j],
            standard_error=effects.standard_errors[h, j],
            low=intervals.low[h, j],
            high=intervals.high[h, j],
            band_low=bands.low[h, j],
            band_high=bands.high[h, j],
            p_value=effects.p_values[h, j],
            adjusted_p_value=effects.adjusted_p_values[h, j],
            raw=raw[j],
        )
        for h in range(study.horizon)
        for j, name in enumerate(names)
    ]


def _differences(total: Total) -> list[record.Difference]:
    """Cochran's Q of every step, and last of all steps together."""
    by_step = heterogeneity(total.significant)
    over_steps = by_step.over_steps()
    return [
        record.Difference(
            step=step,
            statistic=tests.statistic[h],
            df=int(tests.df[h]),
            p_value=tests.p_value[h],
            i_squared=tests.i_squared[h],
        )
        for tests, h, step in [*((by_step, h, h) for h in range(len(by_step.df))), (over_steps, 0, None)]
    ]


def _gains(total: Total, local: Mapping[str, LocalFit], names: Sequence[str]) -> list[record.Gain]:
    """For every site and shared feature, what the others' sums add to its own; medians over steps."""
    gains = []
    for site, fit in local.items():
        gain = gain_from_sharing(fit.summary.sums, total.significant)
        for j, name in enumerate(names):
            worth = _median(gain.worth[:, j])
            gains.append(
                record.Gain(
                    site=site,
                    feature=name,
                    alone=_median(gain.alone[:, j]),
                    together=_median(gain.together[:, j]),
                    worth=worth if np.isfinite(worth) else np.nan,
                    only_together=bool(np.isposinf(worth)),
                )
            )
    return gains


def _median(by_step: Array) -> float:
    """Median over the steps at which a number is known; NaN where it is known at none."""
    known = by_step[~np.isnan(by_step)]
    return float(np.median(known)) if len(known) else np.nan


def _shared_coefficients(
    names: Sequence[str], total: Total, federated: Mapping[str, FederatedFit]
) -> dict[str, record.Coefficient]:
    """NaN where all sites together do not identify a coefficient: a number would come from the ridge alone."""
    identified = infer_effects(total.significant).identified
    by_site = {site: np.where(identified, fit.shared_coefficients, np.nan) for site, fit in federated.items()}
    average = np.mean(list(by_site.values()), axis=0)
    return {
        name: record.Coefficient(
            identified=bool(identified[:, j].any()),
            by_step=average[:, j].tolist(),
            by_site={site: coefficients[:, j].tolist() for site, coefficients in by_site.items()},
        )
        for j, name in enumerate(names)
    }
