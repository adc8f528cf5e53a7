"""Importance sampling: rewards of patients who were treated as the target would have treated them, weighted up.

The paper (Section 5.2) compares methods by a "step-importance sampling estimator" with reference to Thomas and
Brunskill (2016) and Gottesman et al. (2018): the reward of step h is weighted by what was done up to step h, and not by
what was done later. It gives no formula; `per_decision` is that estimator with weights as they are, and `step_weighted`
with weights that are normalised within each step, which both references recommend.

Intervals from these take propensities as known. Where they are estimated by maximum likelihood in a model that holds,
that errs on the safe side: the estimate varies less than with known ones.
"""

from fdtr.evaluation.paths import Paths
from fdtr.evaluation.statistic import Statistic, mean_of, weighted_means
from fdtr.evaluation.weights import Weights


def per_decision(paths: Paths, weights: Weights) -> Statistic:
    """V̂ = (1/n) Σ_i Σ_h ρ_{i,h} r_{i,h}. Unbiased with true propensities; ψ_i = Σ_h ρ_{i,h} r_{i,h} − V̂.

    Estimated ones are to be fitted to the same patients: no normaliser takes back what 1/b̂ is too large by.
    """
    return mean_of((weights.ratios * paths.rewards).sum(axis=0))


def step_weighted(paths: Paths, weights: Weights) -> Statistic:
    """V̂ = Σ_h V̂_h, V̂_h = Σ_i ρ_{i,h} r_{i,h} / Σ_i ρ_{i,h}, each sum over all n patients; always within [0, H].

    ψ_i = Σ_h ρ_{i,h} (r_{i,h} − V̂_h) / ρ̄_h. A step at which nobody has any weight counts as 0.
    """
    return weighted_means(paths.rewards, weights.ratios)
