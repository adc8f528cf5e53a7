"""What a policy is worth, from data that another policy made; how sure that is, and whether to believe it.

    patients = Evaluator(rows, features, folds)
    patients.value(policy, "wdr")                      an Estimate: value, interval, effective sample sizes, warnings
    patients.compare(policy, Behaviour(), "wdr")       paired, on the same patients
    patients.diagnose(policy)                          weights and overlap by step, and a verdict

Everything is on the mapped scale, where a reward lies in [0, 1] and a value in [0, H].
"""

from fdtr.evaluation.cautions import Caution, Kind
from fdtr.evaluation.estimate import Comparison, Estimate, IntervalKind, Method
from fdtr.evaluation.evaluator import Evaluator, IntervalOptions, estimate_all, evaluate
from fdtr.evaluation.propensity import Propensities, fit_propensities, known_propensities
from fdtr.evaluation.target import Acting, Behaviour, ByFold, Constant, Following, Softened, Target

__all__ = [
    "Acting",
    "Behaviour",
    "ByFold",
    "Caution",
    "Comparison",
    "Constant",
    "Estimate",
    "Evaluator",
    "Following",
    "IntervalKind",
    "IntervalOptions",
    "Kind",
    "Method",
    "Propensities",
    "Softened",
    "Target",
    "estimate_all",
    "evaluate",
    "fit_propensities",
    "known_propensities",
]
