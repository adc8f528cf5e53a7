"""Off-policy evaluation: the value of a policy from data that another policy produced, and whether to believe it.

An `Evaluator` holds one site's patients and answers questions about any target:

    value(target, method)       Estimate: value, interval, effective sample sizes, cautions
    compare(first, second)      Comparison: a paired difference, on the same patients
    diagnose(target)            Diagnostics: weights and overlap by step, and a verdict
    sensitivity(target)         Sensitivity: bounds under unmeasured confounding
    calibration, markov         Calibration of the propensities; MarkovCheck of the state

>>> import fdtr, numpy as np, pyarrow as pa
>>> from fdtr.simulation import WorldSpec, make_world
>>> world = make_world(WorldSpec(n_sites=1, horizon=2, n_actions=2), np.random.default_rng(1))
>>> study = fdtr.Study.model_validate(world.study())
>>> rows = fdtr.read_trajectories(pa.table(world.table(400, np.random.default_rng(2))), study)
>>> patients = Evaluator(rows, study.feature_map, folds=np.arange(400) % 5)
>>> estimates = estimate_all(patients, {"always 1": Constant(1), "clinicians": Behaviour()}, ["wis", "wdr"])
>>> round(estimates["clinicians"]["wdr"].value, 2), estimates["always 1"]["wdr"].believable
(0.95, True)
>>> comparison = patients.compare(Softened(Constant(1), 0.5), Behaviour())
>>> comparison.low < comparison.difference < comparison.high
True
>>> patients.diagnose(Constant(1)).effective_sample_size > 50
array([ True,  True])
>>> arrays = step_arrays(rows)
>>> propensities = fit_propensities(arrays, study.feature_map, folds=np.arange(400) % 5)
>>> [chances.shape for chances in propensities.chances]
[(2, 400), (2, 400)]

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
