"""What can be said of a value or of a gain: verified, model-based, or nothing.

*verified*: the doubly robust value, where importance weights and overlap leave nothing in doubt. It is right if either
the propensities or Q are. A target that advises some patients only has to advise enough of them.

*model-based*: the value by the linear model alone (fitted Q); where held-out data reject that model (T, see
`fdtr.evaluation.richer_q`), by the richer one, V̂_r. The interval is wider by the model's estimated error:

    V̂ ± (t · standard error + |D| + s_D),   D = V̂ − V̂_r,   s_D its paired standard error.

|D| + s_D is the `tolerance`. It is a bias, which does not average out over sites.

*not estimable*: too few patients were treated this way, patients treated as is usual fare better than the model says
(T_b), boosted trees predict on held-out data what the model leaves, whether T rejects the linear one or not
(`fdtr.evaluation.trees`), or the Markov check finds that the state does not hold all that matters. There is no number.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.comparisons import Evidence
from fdtr.evaluation.estimate import Doubt
from fdtr.evaluation.importance import effective_sample_size
from fdtr.evaluation.intervals import LEVEL, Range, Statistic, influence_interval
from fdtr.evaluation.richer_q import CRITICAL
from fdtr.evaluation.target_evaluation import TargetEvaluation
from fdtr.evaluation.verification import LEAST_ADVISED, LEAST_PATIENTS

_NO_MODEL = Doubt(
    "Held-out patients contradict the linear model and the richer one, and weights are no way out.",
    "held-out patients contradict the models",
)

_USUAL_IS_BETTER = Doubt(
    "Held-out patients who got what is usual here fared better than the model says, and weights are no way out.",
    "patients treated as usual fared better than the model says",
)

_NOBODY = "nobody could be advised"
_ALIKE = Doubt("Both treat all patients alike.", "it decides as clinicians do")

ENOUGH_UNITS = 1000
"""From so many patients on T_b is tested at the usual level."""

LEAST_VERIFIED = 2
"""Patients behind a verified value or gain (`importance.patients_behind`): with fewer its error is hardly known."""

_Estimator = Literal["wdr", "fqe", "richer"]


_INCOMPLETE = Doubt(
    "The previous step still helps to predict held-out outcomes: the state does not hold all that matters, and weights "
    "are no way out.",
    "part of the patients' state is unseen",
)


@dataclass(frozen=True)
class Assessment:
    """A value on [0, H], or a gain on [−H, H], with its `verdict`; NaN where nothing can be estimated.

    `standard_error` is for Student's t on the number of patients less 1, as a mean over sites takes it, whatever the
    degrees of freedom of the interval. `estimator` is "wdr", "fqe", or "richer". `tolerance` is the estimated error of
    a model, by which the interval is wider; `misfit` is T, NaN where no model is judged. `advised_share` is the share
    of decisions that the target makes, `n_advised` counts the patients for whom it makes any. For a gain, the two
    targets decide differently for `n_differing` patients, and alike for `n_unchanged`. `effective_sample_size` is what
    weights are worth at the worst step, those of a gain among the former. `reason` says why a verdict is not better,
    `brief` in a few words; both are empty if it is verified.
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
    brief: str


def assess(
    first: TargetEvaluation,
    second: TargetEvaluation | None = None,
    level: float = LEVEL,
    past_matters: Callable[[], bool] = lambda: False,
) -> Assessment:
    """The value of the first target, or its paired gain over the second, on the same patients.

    `past_matters` is asked before a model is believed: whether the Markov check finds that the state is incomplete.
    """
    targets = [first] if second is None else [first, second]
    doubts = [_too_little_advice(target) or target.doubt("wdr") for target in targets]
    reason = next(filter(None, doubts), None) or _too_few_behind(first, second)
    if second is not None and not first.decides_unlike(second).any():
        nobody = first.reached is not None and not first.weights.advised.any()
        alike = Doubt(_ALIKE, _NOBODY) if nobody else _ALIKE
        return _assessed(Evidence.NONE, "wdr", first, second, level, alike)
    if not reason:
        return _assessed(Evidence.VERIFIED, "wdr", first, second, level, Doubt())
    doubt = next(filter(None, (target.doubt("fqe") for target in targets)), None)
    if doubt or any(target.reached is not None for target in targets):
        return _assessed(Evidence.NONE, "wdr", first, second, level, doubt or reason)
    compared = [target for target in targets if not target.is_usual]
    misfit = max((target.richer.misfit for target in compared), default=math.nan)
    why_not = Doubt()
    if any(target.richer.usual_misfit > critical_usual(target.data.n_units) for target in compared):
        why_not = _USUAL_IS_BETTER
    elif any(target.unexplained > CRITICAL for target in compared):
        why_not = _NO_MODEL
    elif compared and past_matters():
        why_not = _INCOMPLETE
    if why_not:
        both = Doubt(f"{why_not} {reason}", why_not.brief)
        none = _assessed(Evidence.NONE, "wdr", first, second, level, both)
        return replace(none, misfit=misfit)
    estimator: _Estimator = "richer" if any(target.richer.rejects for target in compared) else "fqe"
    return replace(_assessed(Evidence.MODEL, estimator, first, second, level, reason), misfit=misfit)


def critical_usual(n: int) -> float:
    """Beyond it T_b says that patients with usual care fare better than the model says; `n` independent units.

    From few patients T_b finds little, and a model that misses what clinicians know claims gains that are not there. So
    the fewer they are, the less it takes: the level is 5% from `ENOUGH_UNITS` on, and 23% at a fifth of them.

    >>> round(critical_usual(200), 3), critical_usual(2000)
    (0.736, 1.645)
    """
    return CRITICAL * math.sqrt(min(1.0, n / ENOUGH_UNITS))


def _too_little_advice(target: TargetEvaluation) -> Doubt:
    """Why a target that advises some patients only has no verified part; empty where it has."""
    n = int(target.weights.advised.sum())
    if target.reached is None or (target.advised_share >= LEAST_ADVISED and n >= LEAST_PATIENTS):
        return Doubt()
    return Doubt(
        f"It advises {n} patients, in {target.advised_share:.1%} of all decisions: fewer than {LEAST_PATIENTS}, or "
        f"than {LEAST_ADVISED:.0%}, are no verified part.",
        "too few could be advised" if n else _NOBODY,
    )


def _too_few_behind(first: TargetEvaluation, second: TargetEvaluation | None) -> Doubt:
    """Why the error of a value by weights is not known; empty where it is."""
    behind = first.patients_behind(second)
    if behind >= LEAST_VERIFIED:
        return Doubt()
    what = "The difference from clinicians" if second is None or second.is_usual else "The difference"
    sentence = f"{what} rests on {behind:.1f} patients who might have been treated so; {LEAST_VERIFIED} are the least."
    return Doubt(sentence, "the difference rests on too few patients")


def _assessed(
    verdict: Evidence,
    estimator: _Estimator,
    first: TargetEvaluation,
    second: TargetEvaluation | None,
    level: float,
    reason: Doubt,
) -> Assessment:
    horizon = first.data.arrays.horizon
    possible = Range(0.0, horizon) if second is None else Range(-horizon, horizon)
    compared = [target for target in (first, second) if target is not None and not target.is_usual]
    differs = first.decides_unlike(second)
    value = low = high = error = tolerance = math.nan
    if verdict != Evidence.NONE:
        tolerance = _tolerance(first, second) if verdict == Evidence.MODEL else 0.0
        statistic = _difference(estimator, first, second).clustered(first.data.clusters)
        interval = influence_interval(statistic, Range(-math.inf, math.inf), level, first.data.arrays.n - 1)
        error = interval.standard_error
        ends = possible.clip(interval.low - tolerance, interval.high + tolerance, error)
        if not possible.low <= statistic.value <= possible.high and ends.low == ends.high:
            where = f"[{possible.low:g}, {possible.high:g}]"
            outside = Doubt(f"The whole interval lies outside {where}, where every value is.", "it is out of range")
            return _assessed(Evidence.NONE, estimator, first, second, level, outside)
        value, low, high = min(max(statistic.value, possible.low), possible.high), ends.low, ends.high
    return Assessment(
        verdict=verdict,
        value=value,
        low=low,
        high=high,
        standard_error=error,
        estimator=estimator,
        tolerance=tolerance,
        misfit=math.nan,
        advised_share=first.advised_share,
        n_advised=int(first.weights.advised.sum()),
        n_differing=int(differs.sum()),
        n_unchanged=int((~differs).sum()),
        effective_sample_size=min(_size(target, estimator, differs) for target in compared or [first]),
        reason=str(reason),
        brief=reason.brief,
    )


def _tolerance(first: TargetEvaluation, second: TargetEvaluation | None) -> float:
    """|D| + s_D."""
    off = _difference("fqe", first, second).minus(_difference("richer", first, second))
    statistic = off.clustered(first.data.clusters)
    return abs(statistic.value) + statistic.standard_error


def _size(target: TargetEvaluation, estimator: _Estimator, differs: NDArray[np.bool_]) -> float:
    """What a target's weights are worth at the worst step, among the patients who make a difference."""
    if not differs.any():
        return 0.0
    if estimator == "wdr" or target.is_usual:
        return float(effective_sample_size(target.weights.ratios[:, differs]).min())
    of_differing = effective_sample_size(target.fitted.cautious_kappa[:, differs]).min()
    return float(min(of_differing, target.fitted.effective_sample_size.min()))


def _difference(estimator: _Estimator, first: TargetEvaluation, second: TargetEvaluation | None) -> Statistic:
    return first.statistic(estimator) if second is None else first.difference(second, estimator)
