"""Near ties: patients with two actions almost equally good, where inference on the optimal value is not regular.

V = max_a Q has a kink where two actions are equally good. With many patients near it, estimates of θᵏ before the last
step (their targets contain V) and of the optimal value are biased upward and not normal, and neither the usual interval
nor the bootstrap covers. The value of a *fixed* policy on held-out patients has no such kink.

We count the patients near a tie and withhold such intervals above a limit. The m-out-of-n bootstrap (Chakraborty,
Laber and Zhao, 2013) takes its m from the same share. It would refit every site's policy thousands of times, with other
sites' sums held fixed, for an interval whose coverage depends on a second tuning constant. Withholding is simpler.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.normal_equations import factor, half_solve
from fdtr.algebra.pessimism import argmax_first
from fdtr.algebra.threads import on_one_blas_thread
from fdtr.features import FeatureMap
from fdtr.inference.shared_effects import sidak

if TYPE_CHECKING:  # the hub imports this package, and loads no fitting code
    from fdtr.learners.backward import Fit
    from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]

WITHHOLD_ABOVE = 0.1
"""Non-regular intervals are withheld where the share of near ties exceeds this at some step.

Where a share p of patients has two equally good actions, taking the better estimate raises a step's mean value by up to
0.4·p standard errors of their contrast: with a tenth, little beside the error of the value itself. This is a
convention, not a theorem.
"""


@dataclass(frozen=True, eq=False)
class NearTies:
    """How many patients have another action that is nearly as good as the best.

    `shares` (H,) are the shares of each step's patients for whom another action is within `errors` standard errors of
    the best; NaN at a step without patients.

    >>> NearTies(np.array([0.02, 0.05]), errors=1.96).withheld
    ''
    """

    shares: Array
    errors: float

    @property
    def withheld(self) -> str:
        """Why inference on θᵏ and on the optimal value is withheld; empty if it is not."""
        if not np.any(self.shares > WITHHOLD_ABOVE):
            return ""
        step = int(np.nanargmax(self.shares))
        return (
            f"At step {step} the best action is nearly a tie for {100 * self.shares[step]:.0f}% of patients (another "
            f"is within {self.errors:.2f} standard errors): intervals for the optimal value and for site-specific "
            "effects would be too optimistic and are not shown. The value of this policy on held-out patients is not "
            "affected."
        )


@on_one_blas_thread
def near_ties(rows: "Trajectories", features: FeatureMap, fit: "Fit", errors: float = float(sidak(1))) -> NearTies:
    """Share of the patients of `rows` at each step for whom some action b ≠ π(x) is nearly as good as π(x).

        bound(x, π) − bound(x, b) ≤ z σ̂ √(δᵀΣ⁻¹δ),   δ = φ(x, π) − φ(x, b)

    The policy acts by the bounds φᵀθ − Γ. Γ is known, so the error is that of δᵀθ̂, given V of the next step. Σ contains
    the ridge, so the right-hand side is slightly too small. `errors` is z, `fit` the fit of the policy.
    """
    order = np.argsort(features.levels, kind="stable")
    variances = residual_variances(fit)
    shares = np.full(rows.horizon, np.nan)
    for h in range(rows.horizon):
        lower = factor(fit.precision[h])
        halves = np.stack([half_solve(lower, embedding) for embedding in features.embeddings])
        near, n = 0, 0
        for chunk in rows.step(h).chunks():
            psi = features.psi(chunk.states)
            bounds = fit.bounds[h].bounds(psi)
            best = argmax_first(bounds, order)
            everyone = np.arange(len(best))
            images = halves @ psi  # (A, d, n): L⁻¹φ
            widths = np.linalg.norm(images[best, :, everyone].T - images, axis=1)
            gaps = bounds[best, everyone] - bounds
            tied = gaps <= errors * np.sqrt(variances[h]) * widths if np.isfinite(variances[h]) else gaps >= 0.0
            tied[best, everyone] = False
            near += int(tied.any(axis=0).sum())
            n += len(best)
        if n:
            shares[h] = near / n
    return NearTies(shares, errors)


def residual_variances(fit: "Fit") -> Array:
    """σ̂² of the targets Y = r + V of each step around φᵀθ, (H,): RSS/(n − d), infinite where n ≤ d.

    From the sums alone: RSS = YᵀY − 2θᵀΦᵀY + θᵀΦᵀΦθ.
    """
    variances = np.full(len(fit.statistics), np.inf)
    for h, (theta, sums) in enumerate(zip(fit.theta, fit.statistics, strict=True)):
        df = sums.n - len(theta)
        if df > 0:
            rss = sums.target_square - 2.0 * theta @ sums.moment + theta @ sums.gram @ theta
            variances[h] = max(float(rss), 0.0) / df
    return variances
