"""What every method is worth at every site, on patients it was not fitted to, and over sites."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from fdtr.evaluation import CautionKind, Comparison, Estimate, Method, estimate_all
from fdtr.inference import Pooling, SiteValue, pool
from fdtr.report import record
from fdtr.site import SiteEvaluation
from fdtr.site.evaluating import CLINICIANS, FDTR, LDTR, RELEASED

ESTIMATORS: tuple[Method, ...] = get_args(Method)
POOLED = RELEASED
RIVALS = (CLINICIANS, LDTR)


@dataclass(frozen=True, eq=False, repr=False)
class SiteValues:
    """Everything that is estimated at one site.

    `estimates` of every way of treating by every estimator; `gains` of FDTR over clinicians and over LDTR.
    """

    estimates: Mapping[str, Mapping[Method, Estimate]]
    gains: Mapping[str, Mapping[Method, Comparison]]
    clustered: bool
    trust: record.Trust


def value_site(evaluation: SiteEvaluation, labels: Sequence[str]) -> SiteValues:
    """Estimate all that a study tells of one site."""
    return SiteValues(
        estimates=estimate_all(evaluation.evaluator, evaluation.targets, ESTIMATORS),
        gains={over: {estimator: evaluation.gain(over, estimator) for estimator in POOLED} for over in RIVALS},
        clustered=evaluation.clustered,
        trust=trust_of(evaluation, labels),
    )


def site_values(values: Mapping[str, SiteValues]) -> list[record.Value]:
    """Every way of treating at every site, by every estimator."""
    return [
        value_record(site, method, estimate, valued.clustered)
        for site, valued in values.items()
        for method, estimates in valued.estimates.items()
        for estimate in estimates.values()
    ]


def value_record(site: str, method: str, found: Estimate, clustered: bool) -> record.Value:
    """One estimate as plain values; clusters are counted where errors are by cluster."""
    return record.Value(
        site=site,
        method=method,
        estimator=found.method,
        value=found.value,
        low=found.low,
        high=found.high,
        standard_error=found.standard_error,
        n=found.n,
        n_clusters=found.n_clusters if clustered else None,
        believable=found.believable,
        reason=found.reason,
    )


def pooled_values(values: Mapping[str, SiteValues], horizon: int) -> list[record.Pooled]:
    """Every way of treating over sites, and FDTR's paired difference from clinicians and from LDTR."""
    if not values:
        return []
    methods = list(dict.fromkeys(method for valued in values.values() for method in valued.estimates))
    pooled = [
        _pooled(method, "", {site: valued.estimates[method][estimator] for site, valued in values.items()}, horizon)
        for method in methods
        for estimator in POOLED
    ]
    differences = [
        _pooled(FDTR, over, {site: valued.gains[over][estimator] for site, valued in values.items()}, horizon)
        for over in RIVALS
        for estimator in POOLED
    ]
    return pooled + differences


def _pooled(method: str, over: str, by_site: Mapping[str, Estimate | Comparison], horizon: int) -> record.Pooled:
    """Where some site has no weight left, its standard error is about nothing: the interval is all that is possible."""
    possible = (-horizon if over else 0, horizon)
    found = pool([_site_value(site, one) for site, one in by_site.items()], possible)
    doubtful = [site for site, one in by_site.items() if not one.believable]
    return record.Pooled(
        method=method,
        over=over,
        estimator=next(iter(by_site.values())).method,
        sites=list(found.sites),
        n=found.n,
        **_spans(found, possible if any(map(_lost, by_site.values())) else None),
        i_squared=found.i_squared,
        warnings=[warning.sentence for warning in found.warnings],
        believable=not doubtful,
        reason=_doubt(doubtful, by_site),
    )


def _site_value(site: str, one: Estimate | Comparison) -> SiteValue:
    if isinstance(one, Comparison):
        return SiteValue(site, one.difference, one.standard_error, one.first.n)
    return SiteValue(site, one.value, one.standard_error, one.n)


def _spans(found: Pooling, possible: tuple[int, int] | None) -> dict[str, record.Span]:
    kinds = {"plain": found.plain, "fixed": found.fixed, "random": found.random}
    ends = {name: possible or (one.low, one.high) for name, one in kinds.items()}
    return {name: record.Span(value=one.value, low=ends[name][0], high=ends[name][1]) for name, one in kinds.items()}


def _lost(one: Estimate | Comparison) -> bool:
    """Whether nobody was treated as a target would have, up to some step."""
    estimates = (one.first, one.second) if isinstance(one, Comparison) else (one,)
    return any(caution.kind is CautionKind.NO_WEIGHT_LEFT for estimate in estimates for caution in estimate.warnings)


def _doubt(sites: Sequence[str], by_site: Mapping[str, Estimate | Comparison]) -> str:
    if not sites:
        return ""
    where = "any site" if len(sites) == len(by_site) else ", ".join(sites)
    return f"Not to be believed at {where}, so not over sites."


def trust_of(found: SiteEvaluation, labels: Sequence[str]) -> record.Trust:
    """What stands beside FDTR's value at one site."""
    weights, bounds, calibration, markov = found.diagnostics(), found.sensitivity, found.calibration, found.markov
    return record.Trust(
        present=weights.present.tolist(),
        effective_sample_size=weights.effective_sample_size.tolist(),
        zero_share=weights.zero_share.tolist(),
        largest_share=weights.largest_share.tolist(),
        clipped_share=weights.clipped_share.tolist(),
        mean_weight=weights.mean_weight.tolist(),
        rare_share=weights.overlap.rare_share.tolist(),
        low_propensity=weights.overlap.low_propensity.tolist(),
        agreement=weights.overlap.agreement.tolist(),
        odds=bounds.odds.tolist(),
        odds_low=bounds.low.tolist(),
        odds_high=bounds.high.tolist(),
        practice=bounds.behaviour,
        tipping_odds=bounds.tipping_odds if math.isfinite(bounds.tipping_odds) else math.nan,
        confounding_doubt=bounds.doubt,
        calibration={
            label: record.Curve(
                predicted=calibration.predicted[a].tolist(),
                observed=calibration.observed[a].tolist(),
                count=calibration.count[a].tolist(),
            )
            for a, label in enumerate(labels)
        },
        past=[record.Past(**vars(gain), clear=gain.clear) for gain in (markov.reward, markov.value)],
        warnings=_sentences(found.value(FDTR, estimator) for estimator in POOLED),
    )


def _sentences(estimates: Iterable[Estimate]) -> list[str]:
    return list(dict.fromkeys(caution.sentence for estimate in estimates for caution in estimate.warnings))
