"""Where the best action is nearly a tie, what depends on the maximum has no regular inference.

V = max_a Q has a kink where two actions are level. With many patients near it, estimates of θᵏ before the last step
(their targets contain V) and of the optimal value are biased upward and not normal, and neither the usual interval nor
the bootstrap covers. The value of a *given* policy on held-out patients has no such kink.

We count the patients near a tie and withhold such intervals above a limit. The m-out-of-n bootstrap (Chakraborty,
Laber and Zhao, 2013) takes its m from the very same share; it would refit every site's policy thousands of times, with
other sites' sums held fixed, for an interval whose coverage rests on a second tuning constant. Withholding is simpler
and claims nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import argmax_first
from fdtr.algebra.ridge import factor, half_solve
from fdtr.features import FeatureMap
from fdtr.inference.multiplicity import sidak
from fdtr.learners.backward import Fit
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]

WITHHOLD_ABOVE = 0.1
"""Largest share of near ties at any step with which non-regular intervals are shown.

Where a share p of patients has two level actions, taking the better estimate raises a step's mean value by up to 0.4·p
standard errors of their contrast: with a tenth, little beside the error of the value itself. A convention, no theorem.
"""


@dataclass(frozen=True, eq=False)
class NearTies:
    """How many patients have two actions that are nearly as good.

    `shares` (H,) of the patients of each step for whom another action is within `errors` standard errors of the best;
    NaN at a step without patients.
    """

    shares: Array
    errors: float

    @property
    def withheld(self) -> str:
        """Why inference on θᵏ and on the optimal value is withheld; empty where it is not."""
        if not np.any(self.shares > WITHHOLD_ABOVE):
            return ""
        step = int(np.nanargmax(self.shares))
        return (
            f"At step {step} the best action is nearly a tie for {100 * self.shares[step]:.0f}% of patients (another "
            f"is within {self.errors:.2f} standard errors): intervals for the optimal value and for site-specific "
            "effects would be too optimistic and are not shown. The value of this policy on held-out patients is not "
            "affected."
        )


def near_ties(rows: Trajectories, features: FeatureMap, fit: Fit, errors: float = float(sidak(1))) -> NearTies:
    """Share of the patients of `rows` for whom some action b ≠ π(x) is nearly as good as π(x), step by step.

        bound(x, π) − bound(x, b) ≤ z σ̂ √(δᵀΣ⁻¹δ),   δ = φ(x, π) − φ(x, b)

    Bounds φᵀθ − Γ are what the policy acts by; Γ is known, so that the error is that of δᵀθ̂, given V of the next step.
    Σ contains the ridge, which makes it a little too large. `errors` is z, `fit` the policy's.
    """
    order = np.argsort(features.levels, kind="stable")
    variances = residual_variances(fit)
    shares = np.full(rows.horizon, np.nan)
    for h in range(rows.horizon):
        lower = factor(fit.precision[h])
        halves = np.stack([half_solve(lower, embedding) for embedding in features.embeddings])
        near, seen = 0, 0
        for chunk in rows.step(h).chunks():
            psi = features.psi(chunk.states)
            bounds = fit.bounds[h].bounds(psi)
            best = argmax_first(bounds, order)
            everyone = np.arange(len(best))
            images = halves @ psi  # (A, d, n): L⁻¹φ
            widths = np.linalg.norm(images[best, :, everyone].T - images, axis=1)
            gaps = bounds[best, everyone] - bounds
            level = gaps <= errors * np.sqrt(variances[h]) * widths if np.isfinite(variances[h]) else gaps >= 0.0
            level[best, everyone] = False
            near += int(level.any(axis=0).sum())
            seen += len(best)
        if seen:
            shares[h] = near / seen
    return NearTies(shares, errors)


def residual_variances(fit: Fit) -> Array:
    """σ̂² of the targets Y = r + V of each step around φᵀθ, (H,): RSS/(n − d), infinite where n ≤ d.

    From the sums alone: RSS = YᵀY − 2θᵀΦᵀY + θᵀΦᵀΦθ.
    """
    found = np.full(len(fit.statistics), np.inf)
    for h, (theta, sums) in enumerate(zip(fit.theta, fit.statistics, strict=True)):
        spare = sums.n - len(theta)
        if spare > 0:
            left = sums.target_square - 2.0 * theta @ sums.moment + theta @ sums.gram @ theta
            found[h] = max(float(left), 0.0) / spare
    return found
