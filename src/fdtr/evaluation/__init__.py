"""Off-policy evaluation: the value of a policy from data that another policy produced, and whether to believe it.

An `Evaluator` holds one site's patients and answers questions about any target:

    value(target, method)       Estimate: value, interval, effective sample sizes, cautions
    compare(first, second)      Comparison: a paired difference, on the same patients
    diagnose(target)            Diagnostics: weights and overlap by step, and a verdict
    sensitivity(target)         Sensitivity: bounds under unmeasured confounding
    calibration, markov         Calibration of the propensities; MarkovCheck of the state

>>> import fdtr, numpy as np, pyarrow as pa
>>> covariates = [{"name": "sbp", "effect": "specific", "range": [40, 220]}]
>>> actions = {"levels": [0, 1], "degree": 1}
>>> study = fdtr.Study.model_validate({"name": "doc", "horizon": 1, "actions": actions, "covariates": covariates})
>>> draw, n = np.random.default_rng(0), 400
>>> table = {"patient": range(n), "step": [0] * n, "action": draw.integers(0, 2, n), "sbp": draw.uniform(40, 220, n)}
>>> reward = 0.3 + 0.4 * table["action"] + draw.uniform(0, 0.2, n)
>>> rows = fdtr.read_trajectories(pa.table(table | {"reward": reward}), study, site="a")
>>> patients = Evaluator(rows, study.feature_map, folds=np.arange(n) % 5)
>>> treated = patients.value(Constant(1), "wdr")
>>> round(treated.value, 2), treated.believable
(0.8, True)
>>> comparison = patients.compare(Constant(1), Behaviour())
>>> comparison.low > 0
True

*Targets* are policies, or `Behaviour` (what clinicians do), `Constant` (one action for all), `Softened` (a mixture of
a target and clinicians), `Deterministic` (a function that recommends actions), `ByFold` (a policy for each fold).

*Methods* are "pdis" and "wis" (importance sampling), "fqe" (fitted-Q evaluation), "dr" and "wdr" (doubly robust);
docs/methods.md has their equations. *Intervals* are chosen by `IntervalOptions`.

Everything is on the mapped scale: a reward lies in [0, 1] and a value in [0, H].
"""

from fdtr.evaluation.confounding import Sensitivity
from fdtr.evaluation.diagnostics import Diagnostics, Overlap, Verdict
from fdtr.evaluation.estimate import Caution, CautionKind, Comparison, Estimate, IntervalKind, Method
from fdtr.evaluation.evaluator import Evaluator, IntervalOptions, estimate_all
from fdtr.evaluation.markov import MarkovCheck, PredictionGain
from fdtr.evaluation.propensity import (
    Calibration,
    Propensities,
    PropensitySteps,
    fit_propensities,
    known_propensities,
)
from fdtr.evaluation.step_arrays import StepArrays, step_arrays
from fdtr.evaluation.targets import Behaviour, ByFold, Constant, Deterministic, PolicyLike, Softened, Target, as_target

__all__ = [
    "Behaviour",
    "ByFold",
    "Calibration",
    "Caution",
    "CautionKind",
    "Comparison",
    "Constant",
    "Deterministic",
    "Diagnostics",
    "Estimate",
    "Evaluator",
    "IntervalKind",
    "IntervalOptions",
    "MarkovCheck",
    "Method",
    "Overlap",
    "PolicyLike",
    "PredictionGain",
    "Propensities",
    "PropensitySteps",
    "Sensitivity",
    "Softened",
    "StepArrays",
    "Target",
    "Verdict",
    "as_target",
    "estimate_all",
    "fit_propensities",
    "known_propensities",
    "step_arrays",
]
