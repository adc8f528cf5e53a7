"""What `fdtr site evaluate` and `fdtr hub pool` say."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from fdtr.cli import show

if TYPE_CHECKING:
    from fdtr.disclosure import ValueMessage, Withheld
    from fdtr.evaluation import Estimate
    from fdtr.hub import PooledMethod
    from fdtr.inference import Pooled
    from fdtr.site import SiteEvaluation
    from fdtr.study import Study

DOUBT = "×"
NAMES = {"wdr": "doubly robust (wdr)", "fqe": "linear model alone (fqe)"}


def evaluation(study: Study, found: SiteEvaluation, message: ValueMessage | None, out: Path | None) -> None:
    """Every method at one site, what is not to be believed, and what would leave."""
    from fdtr.site.evaluating import RELEASED

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
    ess = [f"{size:,.0f}" for size in estimates["FDTR"][0].effective_sample_size]
    show.line(f"Effective sample size of FDTR's weights, by step: {', '.join(ess)}.")
    doubts = dict.fromkeys(one.reason for one in estimates["FDTR"] if not one.believable)
    if any(not one.believable for ones in estimates.values() for one in ones):
        show.line(f"{DOUBT} not to be believed." + "".join(f" FDTR: {reason}" for reason in doubts))
    for warning in dict.fromkeys(caution.sentence for one in estimates["FDTR"] for caution in one.warnings):
        show.line(f"FDTR: {warning}")
    show.line()
    if message is not None:
        told = message.values.values
        show.line(
            f"To leave the site: value and standard error of {len(told)} estimates, and {n:,}, how many patients."
        )
        if message.withheld:
            rows = [[one.found.method, one.found.estimator, one.why] for one in message.withheld]
            show.table("These stay at home", ["method", "estimator", "why"], rows)
    elif out is None:
        show.line("Nothing was written. Add --out FILE to make a file for the hub.")


def evaluation_json(found: SiteEvaluation, message: ValueMessage | None, out: Path | None) -> None:
    """The same for machines."""
    from typing import get_args

    from fdtr.evaluation import Method

    methods = {
        name: {estimator: _estimate(found.value(name, estimator)) for estimator in get_args(Method)}
        for name in found.targets
    }
    released = None
    if message is not None:
        told = [{"method": one.method, "estimator": one.estimator} for one in message.values.values]
        released = {"file": str(out), "values": told, "withheld": [_withheld(one) for one in message.withheld]}
    show.as_json(
        {"site": found.site, "patients": found.evaluator.rows.n_patients, "methods": methods, "released": released}
    )


def _withheld(one: Withheld) -> dict[str, str]:
    return {"method": one.found.method, "estimator": one.found.estimator, "why": one.why}


def _estimate(one: Estimate) -> dict[str, object]:
    return {
        "value": show.finite(one.value),
        "low": show.finite(one.low),
        "high": show.finite(one.high),
        "standard_error": show.finite(one.standard_error),
        "n": one.n,
        "effective_sample_size": [show.finite(size) for size in one.effective_sample_size.tolist()],
        "believable": one.believable,
        "reason": one.reason,
        "warnings": [{"name": caution.kind.value, "sentence": caution.sentence} for caution in one.warnings],
    }


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
        columns = ["method", "sites", "patients", "mean over sites", "fixed effect", "random effects", "I²"]
        bound = f"sum of {study.horizon} mapped rewards, at most {study.horizon}"
        if rows:
            show.table(f"Value, {name}, 95%: {bound}", columns, rows)
    quiet = [one for one in found if one.silent]
    if quiet:
        rows = [[one.method, one.estimator, ", ".join(one.silent)] for one in quiet]
        show.table("Not told by every site: a mean over some", ["method", "estimator", "withheld by"], rows)
    for warning in dict.fromkeys(w.sentence for one in found for w in one.pooling.warnings):
        show.line(warning)


def _pooled_json(one: PooledMethod) -> dict[str, object]:
    found = one.pooling
    kinds = {"plain": found.plain, "fixed": found.fixed, "random": found.random}
    return {
        "method": one.method,
        "estimator": one.estimator,
        "sites": list(found.sites),
        "not_told_by": list(one.silent),
        "patients": found.n,
        **{name: {key: show.finite(x) for key, x in vars(kind).items()} for name, kind in kinds.items()},
        "between": show.finite(found.between),
        "Q": show.finite(found.statistic),
        "df": found.df,
        "p": show.finite(found.p_value),
        "i_squared": show.finite(found.i_squared),
        "predicted": [show.finite(found.predicted_low), show.finite(found.predicted_high)],
        "warnings": [vars(warning) for warning in found.warnings],
    }


def _interval(one: Estimate) -> str:
    return f"{one.value:.3f} ({one.low:.2f} to {one.high:.2f}){'' if one.believable else f' {DOUBT}'}"


def _span(one: Pooled) -> str:
    return f"{one.value:.3f} ± {one.high - one.value:.3f}" if isfinite(one.high) else f"{one.value:.3f}"
