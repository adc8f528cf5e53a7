"""What the data can tell: shared effects on the reward, whether they are common, what sharing gains, and what holds."""

from fdtr.inference.effects import Band, SharedEffects, infer_effects
from fdtr.inference.estimation_bound import theorem3_bound, theorem3_bound_from_total
from fdtr.inference.gain import Gain, gain_from_sharing
from fdtr.inference.heterogeneity import Heterogeneity, heterogeneity, power
from fdtr.inference.identification import Identified, identify
from fdtr.inference.leave_one_out import SUSPICION, Suspicion, suspicions
from fdtr.inference.multiplicity import holm, sidak
from fdtr.inference.near_ties import WITHHOLD_ABOVE, NearTies, near_ties
from fdtr.inference.own_check import DOUBT, OwnCheck, compare_held_out
from fdtr.inference.pooling import Pooled, Pooling, PoolingWarning, SiteValue, pool
from fdtr.inference.transitions import REJECTION_LEVEL, FTest, rejected, transition_test
from fdtr.inference.units import raw_factors

SMALL_P = 0.05
"""What a table of p-values marks; several small ones are expected by chance where there are many tests."""

__all__ = [
    "DOUBT",
    "REJECTION_LEVEL",
    "SMALL_P",
    "SUSPICION",
    "WITHHOLD_ABOVE",
    "Band",
    "FTest",
    "Gain",
    "Heterogeneity",
    "Identified",
    "NearTies",
    "OwnCheck",
    "Pooled",
    "Pooling",
    "PoolingWarning",
    "SharedEffects",
    "SiteValue",
    "Suspicion",
    "compare_held_out",
    "gain_from_sharing",
    "heterogeneity",
    "holm",
    "identify",
    "infer_effects",
    "near_ties",
    "pool",
    "power",
    "raw_factors",
    "rejected",
    "sidak",
    "suspicions",
    "theorem3_bound",
    "theorem3_bound_from_total",
    "transition_test",
]
