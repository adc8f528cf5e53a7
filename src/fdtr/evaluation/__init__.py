"""Off-policy evaluation: the value of a policy from data that another policy produced, and whether to believe it.

An `Evaluator` holds one site's patients and answers questions about any target:

    value(target, method)       an `Estimate`: value, interval, effective sample sizes, cautions
    compare(first, second)      a paired difference of values on the same patients, with its interval
    diagnose(target)            `weights` and `overlap` by step, and the `doubt` they give rise to
    sensitivity(target)         bounds under unmeasured confounding
    calibration, markov         of the propensities; whether the state holds all that matters of the past

>>> import fdtr, numpy as np, pyarrow as pa
>>> from fdtr.simulation import WorldSpec, make_world
>>> world = make_world(WorldSpec(n_sites=1, horizon=2, n_actions=2), np.random.default_rng(1))
>>> study = fdtr.Study.model_validate(world.study())
>>> rows = fdtr.read_trajectories(pa.table(world.table(400, np.random.default_rng(2))), study)
>>> patients = Evaluator(rows, study.feature_map, folds=np.arange(400) % 5)
>>> estimate = patients.value(Constant(1), "wdr")
>>> estimate.low < estimate.value < estimate.high, estimate.believable
(True, True)
>>> comparison = patients.compare(Softened(Constant(1), 0.5), Behaviour())
>>> comparison.low < comparison.difference < comparison.high
True
>>> patients.diagnose(Constant(1)).weights.effective_sample_size > 50
array([ True,  True])

*Targets* are policies (anything with `act(states, step)`), or `Behaviour` (what clinicians do), `Constant` (one action
for all) and `Softened` (a mixture of a target and clinicians).

*Methods* are "pdis" and "wis" (importance sampling), "fqe" (fitted-Q evaluation), "dr" and "wdr" (doubly robust);
docs/methods.md has their equations. *Intervals* are chosen by `IntervalOptions`.

Everything is on the mapped scale: a reward lies in [0, 1] and a value in [0, H].
"""

from fdtr.comparisons import Evidence
from fdtr.evaluation.assessment import Assessment
from fdtr.evaluation.estimate import Estimate, Estimator, IntervalKind
from fdtr.evaluation.evaluator import Evaluator
from fdtr.evaluation.intervals import IntervalOptions
from fdtr.evaluation.propensity import Propensities, known_propensities
from fdtr.evaluation.targets import Behaviour, Constant, PolicyLike, Softened

__all__ = [
    "Assessment",
    "Behaviour",
    "Constant",
    "Estimate",
    "Estimator",
    "Evaluator",
    "Evidence",
    "IntervalKind",
    "IntervalOptions",
    "PolicyLike",
    "Propensities",
    "Softened",
    "known_propensities",
]
