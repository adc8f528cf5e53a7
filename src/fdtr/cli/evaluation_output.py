"""What `fdtr site evaluate` and `fdtr hub pool` print: values, how far to trust them, and means over sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from fdtr.cli import show
from fdtr.disclosure import ValueMessage
from fdtr.hub import PooledMethod
from fdtr.inference.pooling import Pooled
from fdtr.study import Study

if TYPE_CHECKING:  # the hub prints means over sites without loading what fits
    from fdtr.site.site_evaluation import SiteEvaluation

Interval = tuple[float, float, float, bool]

DOUBT = "×"
NAMES = {"wdr": "doubly robust (wdr)", "fqe": "linear model alone (fqe)"}


def values_table(title: str, study: Study, intervals: Mapping[str, Sequence[Interval]]) -> None:
    """Print a row for each method: its value by wdr and by fqe, and that by wdr in raw units where these differ.

    `intervals` are value, low, high and whether to believe it, by wdr and by fqe.
    """
    low, high = study.reward.range
    raw = (low, high) != (0.0, 1.0)
    rows = []
    for method, of_method in intervals.items():
        in_raw_units = study.horizon * low + of_method[0][0] * (high - low)
        rows.append(
            [method, *(_interval(*interval) for interval in of_method), *([f"{in_raw_units:.4g}"] if raw else [])]
        )
    columns = ["method", *NAMES.values(), *(["wdr in raw units"] if raw else [])]
    show.table(f"{title} (95%): sum of {study.horizon} mapped rewards, at most {study.horizon}", columns, rows)


def _interval(value: float, low: float, high: float, believable: bool) -> str:
    return f"{value:.3f} ({low:.2f} to {high:.2f}){'' if believable else f' {DOUBT}'}"


def show_evaluation(study: Study, evaluation: SiteEvaluation) -> None:
    """Print every method's value at one site, what is not to be believed and why, and FDTR's weights by step."""
    estimates = {name: [evaluation.value(name, "wdr"), evaluation.value(name, "fqe")] for name in evaluation.targets}
    patients = f"{evaluation.evaluator.rows.n_patients:,} patients, none treated by a policy fitted to them"
    values_table(
        f"{evaluation.site}: value to {patients}",
        study,
        {name: [(e.value, e.low, e.high, e.believable) for e in pair] for name, pair in estimates.items()},
    )
    doubts = [[name, e.method, e.reason] for name, pair in estimates.items() for e in pair if not e.believable]
    if doubts:
        show.table(f"{DOUBT} not to be believed", ["method", "estimator", "why"], doubts, keys=2)
    diagnostics = evaluation.diagnostics()
    weights = diagnostics.weights
    shares = (weights.zero_share, weights.largest_share, diagnostics.overlap.rare_share)
    show.table(
        "FDTR's importance weights by step",
        ["step", "patients", "worth", "mean", "without weight", "heaviest", "asks for the rarely done"],
        [
            [
                str(h),
                f"{diagnostics.present[h]:,}",
                f"{weights.effective_sample_size[h]:.1f}",
                f"{weights.mean[h]:.2f}",
                *(f"{share[h]:.0%}" if isfinite(share[h]) else "–" for share in shares),
            ]
            for h in range(study.horizon)
        ],
    )
    for warning in dict.fromkeys(caution.sentence for e in estimates["FDTR"] for caution in e.warnings):
        show.line(f"FDTR: {warning}")
    show.line()


def show_released_values(message: ValueMessage) -> None:
    """Print how many values may leave the site, and which stay and why."""
    n_values, n = len(message.values.values), message.values.n
    show.line(f"May leave the site: {n_values} values with standard errors, and {n:,}, how many patients.")
    if message.withheld:
        rows = [[value.estimate.method, value.estimate.estimator, value.why] for value in message.withheld]
        show.table("These stay at home", ["method", "estimator", "why"], rows, keys=2)


def show_pooled_values(study: Study, methods: Sequence[PooledMethod], machine: bool) -> None:
    """Print means over sites: the plain mean as in the paper, fixed and random effects beside it."""
    if machine:
        show.as_json([_pooled_json(method) for method in methods])
        return
    for estimator, name in NAMES.items():
        rows = [
            [
                pooled.method,
                str(len(pooled.pooling.sites)),
                f"{pooled.pooling.n:,}",
                *(_mean(mean) for mean in (pooled.pooling.plain, pooled.pooling.fixed, pooled.pooling.random)),
                f"{pooled.pooling.i_squared:.0%}" if isfinite(pooled.pooling.i_squared) else "–",
            ]
            for pooled in methods
            if pooled.estimator == estimator
        ]
        columns = ["method", "sites", "n", "mean", "fixed effect", "random effects", "I²"]
        bound = f"sum of {study.horizon} mapped rewards, at most {study.horizon}"
        caution = "; right as far as the model is" if estimator == "fqe" else ""
        if rows:
            show.table(f"Value over sites, {name}, ± 95%: {bound}{caution}", columns, rows)
    incomplete = [[pooled.method, pooled.estimator, ", ".join(pooled.silent)] for pooled in methods if pooled.silent]
    if incomplete:
        show.table(
            "Not told by every site: a mean over some", ["method", "estimator", "withheld by"], incomplete, keys=2
        )
    warnings = {warning.name: warning.sentence for pooled in reversed(methods) for warning in pooled.pooling.warnings}
    for sentence in warnings.values():
        show.line(sentence)


def _pooled_json(pooled: PooledMethod) -> dict[str, object]:
    """More than the record keeps of a mean over sites: its standard errors and Cochran's Q, too."""
    pooling = pooled.pooling
    return {
        "method": pooled.method,
        "estimator": pooled.estimator,
        "sites": pooling.sites,
        "not_told_by": pooled.silent,
        "patients": pooling.n,
        "plain": pooling.plain,
        "fixed": pooling.fixed,
        "random": pooling.random,
        "between": pooling.between,
        "Q": pooling.statistic,
        "df": pooling.df,
        "p": pooling.p_value,
        "i_squared": pooling.i_squared,
        "predicted": [pooling.predicted_low, pooling.predicted_high],
        "warnings": pooling.warnings,
    }


def _mean(mean: Pooled) -> str:
    return f"{mean.value:.3f} ± {mean.high - mean.value:.3f}" if isfinite(mean.high) else f"{mean.value:.3f}"
