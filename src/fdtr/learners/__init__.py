"""The paper's algorithms on plain arrays and numbers, one site at a time.

    fit_local           LDTR, Algorithm 1: this site's patients alone
    fit_federated       FDTR, Algorithm 2: shared effects estimated with the sums of `Others`, (10) and (11)
    fit_with_each       FDTR for several c at once
    fit_private         LDTR with noise on each step's sums, for a differentially private message
    fit_q_learning      the baselines Q-learn (1) and Q-learn (H); `MajorityVote` of several policies

All take `Trajectories` of one site and a `FeatureMap`; the pessimistic ones also `Settings` and return a `Fit`. They
know no study file: `fdtr.fit_local` and `fdtr.fit_federated` take a study, tune, and return policies.
"""

from fdtr.learners.accumulate import StepStatistics, accumulate
from fdtr.learners.backward import Fit, Settings, grams_of, sums_of
from fdtr.learners.baselines import MajorityVote, QLearningFit, fit_q_learning
from fdtr.learners.federated import Others, fit_federated, fit_with_each
from fdtr.learners.local import fit_local
from fdtr.learners.private_fit import Noise, fit_private

__all__ = [
    "Fit",
    "MajorityVote",
    "Noise",
    "Others",
    "QLearningFit",
    "Settings",
    "StepStatistics",
    "accumulate",
    "fit_federated",
    "fit_local",
    "fit_private",
    "fit_q_learning",
    "fit_with_each",
    "grams_of",
    "sums_of",
]
