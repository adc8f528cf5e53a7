"""What can be said of a value or of a gain: verified, model-based, or nothing.

*verified*: the doubly robust value, where importance weights and overlap leave nothing in doubt. It is right if either
the propensities or Q are. A target that advises some patients only has to advise enough of them.

*model-based*: the value by the linear model alone (fitted Q). Where held-out data reject that model (T, see
`fdtr.evaluation.richer_q`), it is the richer model's value, and the interval is wider by the model's estimated error:

    V̂_r ± (t · standard error + |D| + s_D),   D = V̂ − V̂_r,   s_D its paired standard error.

|D| + s_D is the `tolerance`. It is a bias, which does not average out over sites.

*not estimable*: too few patients were treated this way, or held-out data reject the richer model, too
(`fdtr.evaluation.trees`). There is no number.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.evaluation.importance import effective_sample_size
from fdtr.evaluation.intervals import LEVEL, Range, Statistic, influence_interval
from fdtr.evaluation.richer_q import CRITICAL
from fdtr.evaluation.target_evaluation import TargetEvaluation
from fdtr.evaluation.verification import LEAST_ADVISED, LEAST_PATIENTS

_ROUNDING = 1e-9

_NO_MODEL = "Held-out patients contradict the linear model and the richer one, and weights are no way out."

_Estimator = Literal["wdr", "fqe", "richer"]


class Evidence(StrEnum):
    """How far a number can be believed."""

    VERIFIED = "verified"
    MODEL = "model-based"
    NONE = "not estimable"


@dataclass(frozen=True)
class Assessment:
    """A value on [0, H], or a gain on [−H, H], with its `verdict`; NaN where nothing can be estimated.

    `estimator` is "wdr", "fqe", or "richer" where the interval is widened by `tolerance`. `misfit` is T, NaN where no
    model is judged. `advised_share` is the share of decisions that the target makes, `n_advised` counts the patients
    for whom it makes any. For a gain, `n_differing` patients contribute to the difference, `n_unchanged` contribute
    nothing. `effective_sample_size` is what weights are worth at the worst step, those of a gain among the former.
    `reason` says why a verdict is not better; it is empty if it is verified.
    """

    verdict: Evidence
    value: float
    low: float
    high: float
    standard_error: float
    estimator: _Estimator
    tolerance: float
    misfit: float
    advised_share: float
    n_advised: int
    n_differing: int
    n_unchanged: int
    effective_sample_size: float
    reason: str


def assess(first: TargetEvaluation, second: TargetEvaluation | None = None, level: float = LEVEL) -> Assessment:
    """The value of the first target, or its paired gain over the second, on the same patients."""
    targets = [first] if second is None else [first, second]
    reason = _too_little_advice(first) or next(filter(None, (target.doubt("wdr") for target in targets)), "")
    if not reason:
        return _assessed(Evidence.VERIFIED, "wdr", first, second, level, "")
    doubt = next(filter(None, (target.doubt("fqe") for target in targets)), "")
    if doubt or first.reached is not None:
        return _assessed(Evidence.NONE, "wdr", first, second, level, doubt or reason)
    compared = [target for target in targets if not target.is_usual]
    if any(target.unexplained > CRITICAL for target in compared):
        return _assessed(Evidence.NONE, "wdr", first, second, level, f"{_NO_MODEL} {reason}")
    widened = any(target.richer.rejects for target in compared)
    return _assessed(Evidence.MODEL, "richer" if widened else "fqe", first, second, level, reason)


def _too_little_advice(target: TargetEvaluation) -> str:
    """Why a target that advises some patients only has no verified part; empty where it has."""
    n = int(target.weights.advised.sum())
    if target.reached is None or (target.advised_share >= LEAST_ADVISED and n >= LEAST_PATIENTS):
        return ""
    return (
        f"It advises {n} patients, in {target.advised_share:.1%} of all decisions: fewer than {LEAST_PATIENTS}, or "
        f"than {LEAST_ADVISED:.0%}, are no verified part."
    )


def _assessed(
    verdict: Evidence,
    estimator: _Estimator,
    first: TargetEvaluation,
    second: TargetEvaluation | None,
    level: float,
    reason: str,
) -> Assessment:
    horizon = first.data.arrays.horizon
    possible = Range(0.0, horizon) if second is None else Range(-horizon, horizon)
    targets = [first] if second is None else [first, second]
    compared = [target for target in targets if not target.is_usual]
    judged = [target.richer.misfit for target in compared] if verdict == Evidence.MODEL else []
    differs = np.abs(_difference(estimator, first, second).contributions) > _ROUNDING
    if second is None:
        differs = first.weights.advised if first.reached is not None else np.ones(first.data.arrays.n, bool)
    value = low = high = error = math.nan
    tolerance = 0.0 if verdict == Evidence.VERIFIED else math.nan
    if verdict != Evidence.NONE:
        if verdict == Evidence.MODEL:
            off = _difference("fqe", first, second).minus(_difference("richer", first, second))
            tolerance = abs(off.value) + off.standard_error
        statistic = _difference(estimator, first, second).clustered(first.data.clusters)
        wider = tolerance if estimator == "richer" else 0.0
        interval = influence_interval(statistic, Range(-math.inf, math.inf), level)
        error = interval.standard_error
        ends = possible.clip(interval.low - wider, interval.high + wider, error)
        value, low, high = min(max(statistic.value, possible.low), possible.high), ends.low, ends.high
    return Assessment(
        verdict=verdict,
        value=value,
        low=low,
        high=high,
        standard_error=error,
        estimator=estimator,
        tolerance=tolerance,
        misfit=max(judged, default=math.nan),
        advised_share=first.advised_share,
        n_advised=int(first.weights.advised.sum()),
        n_differing=int(differs.sum()),
        n_unchanged=int((~differs).sum()),
        effective_sample_size=min(_size(target, estimator, differs) for target in compared or targets),
        reason=reason,
    )


def _size(target: TargetEvaluation, estimator: _Estimator, differs: NDArray[np.bool_]) -> float:
    """What a target's weights are worth at the worst step, among the patients who make a difference."""
    if estimator != "wdr" and not target.is_usual:
        return float(target.fitted.effective_sample_size.min())
    return float(effective_sample_size(target.weights.ratios[:, differs]).min()) if differs.any() else 0.0


def _difference(estimator: _Estimator, first: TargetEvaluation, second: TargetEvaluation | None) -> Statistic:
    statistic = first.statistic(estimator)
    return statistic if second is None else statistic.minus(second.statistic(estimator))
