"""What `fdtr site evaluate` and `fdtr hub pool` say."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from fdtr.cli import show

if TYPE_CHECKING:
    from fdtr.disclosure import ValueMessage
    from fdtr.evaluation import Estimate
    from fdtr.hub import PooledMethod
    from fdtr.inference import Pooled
    from fdtr.site import SiteEvaluation
    from fdtr.study import Study

DOUBT = "×"
_ALONE = {"fqe": "; right as far as the model is"}
NAMES = {"wdr": "doubly robust (wdr)", "fqe": "linear model alone (fqe)"}


def evaluation(study: Study, found: SiteEvaluation) -> None:
    """Every method at one site, what is not to be believed and why, and FDTR's weights by step."""
    from fdtr.site.site_evaluation import RELEASED

    estimates = {name: [found.value(name, estimator) for estimator in RELEASED] for name in found.targets}
    low, high = study.reward.range
    raw = (low, high) != (0.0, 1.0)
    rows = [
        [name, *map(_interval, ones), *([f"{study.horizon * low + ones[0].value * (high - low):.4g}"] if raw else [])]
        for name, ones in estimates.items()
    ]
    columns = ["method", *(NAMES[estimator] for estimator in RELEASED), *(["wdr in raw units"] if raw else [])]
    n = found.evaluator.rows.n_patients
    show.table(
        f"{found.site}: value to {n:,} patients, none treated by a policy fitted to them (95%): sum of "
        f"{study.horizon} mapped rewards, at most {study.horizon}",
        columns,
        rows,
    )
    doubts = [[name, one.method, one.reason] for name, ones in estimates.items() for one in ones if not one.believable]
    if doubts:
        show.table(f"{DOUBT} not to be believed", ["method", "estimator", "why"], doubts)
    weights = found.diagnostics()
    shares = (weights.zero_share, weights.largest_share, weights.overlap.rare_share)
    show.table(
        "FDTR's importance weights by step",
        ["step", "patients", "worth", "mean", "without weight", "heaviest", "asks for the rarely done"],
        [
            [
                str(h),
                f"{weights.present[h]:,}",
                f"{weights.effective_sample_size[h]:.1f}",
                f"{weights.mean_weight[h]:.2f}",
                *(f"{share[h]:.0%}" if isfinite(share[h]) else "–" for share in shares),
            ]
            for h in range(study.horizon)
        ],
    )
    for warning in dict.fromkeys(caution.sentence for one in estimates["FDTR"] for caution in one.warnings):
        show.line(f"FDTR: {warning}")
    show.line()


def leaving(message: ValueMessage) -> None:
    """What would leave the site, and what stays."""
    told = message.values
    show.line(f"May leave the site: {len(told.values)} values with standard errors, and {told.n:,}, how many patients.")
    if message.withheld:
        rows = [[one.estimate.method, one.estimate.estimator, one.why] for one in message.withheld]
        show.table("These stay at home", ["method", "estimator", "why"], rows)


def evaluation_json(study: Study, found: SiteEvaluation, message: ValueMessage | None, out: Path | None) -> None:
    """The same for machines."""
    from fdtr.pipeline.study_record import value_record, value_site

    valued = value_site(found, study.actions.labels)
    released = None
    if message is not None:
        names = [{"method": value.method, "estimator": value.estimator} for value in message.values.values]
        withheld = [
            {"method": held.estimate.method, "estimator": held.estimate.estimator, "why": held.why}
            for held in message.withheld
        ]
        released = {"file": out, "values": names, "withheld": withheld}
    show.as_json(
        {
            "site": found.site,
            "patients": found.evaluator.rows.n_patients,
            "methods": {
                method: {
                    estimator: {
                        **value_record(found.site, method, estimate, valued.clustered).model_dump(),
                        "effective_sample_size": estimate.effective_sample_size.tolist(),
                        "warnings": [
                            {"name": caution.kind, "sentence": caution.sentence} for caution in estimate.warnings
                        ],
                    }
                    for estimator, estimate in estimates.items()
                }
                for method, estimates in valued.estimates.items()
            },
            "trust": valued.trust,
            "released": released,
        }
    )


def pooled(study: Study, found: Sequence[PooledMethod], machine: bool) -> None:
    """The sites' values as one: the plain mean as in the paper, fixed and random effects beside it."""
    if machine:
        show.as_json([_pooled_json(one) for one in found])
        return
    for estimator, name in NAMES.items():
        rows = [
            [
                one.method,
                str(len(one.pooling.sites)),
                f"{one.pooling.n:,}",
                *(_span(kind) for kind in (one.pooling.plain, one.pooling.fixed, one.pooling.random)),
                f"{one.pooling.i_squared:.0%}" if isfinite(one.pooling.i_squared) else "–",
            ]
            for one in found
            if one.estimator == estimator
        ]
        columns = ["method", "sites", "n", "mean", "fixed effect", "random effects", "I²"]
        bound = f"sum of {study.horizon} mapped rewards, at most {study.horizon}"
        if rows:
            show.table(f"Value over sites, {name}, ± 95%: {bound}{_ALONE.get(estimator, '')}", columns, rows)
    quiet = [one for one in found if one.silent]
    if quiet:
        rows = [[one.method, one.estimator, ", ".join(one.silent)] for one in quiet]
        show.table("Not told by every site: a mean over some", ["method", "estimator", "withheld by"], rows)
    named = {w.name: w.sentence for one in reversed(found) for w in one.pooling.warnings}
    for sentence in named.values():
        show.line(sentence)


def _pooled_json(one: PooledMethod) -> dict[str, object]:
    """More than the record keeps of a mean over sites: its standard errors and Cochran's Q, too."""
    found = one.pooling
    return {
        "method": one.method,
        "estimator": one.estimator,
        "sites": found.sites,
        "not_told_by": one.silent,
        "patients": found.n,
        "plain": found.plain,
        "fixed": found.fixed,
        "random": found.random,
        "between": found.between,
        "Q": found.statistic,
        "df": found.df,
        "p": found.p_value,
        "i_squared": found.i_squared,
        "predicted": [found.predicted_low, found.predicted_high],
        "warnings": found.warnings,
    }


def _interval(one: Estimate) -> str:
    return f"{one.value:.3f} ({one.low:.2f} to {one.high:.2f}){'' if one.believable else f' {DOUBT}'}"


def _span(one: Pooled) -> str:
    return f"{one.value:.3f} ± {one.high - one.value:.3f}" if isfinite(one.high) else f"{one.value:.3f}"
