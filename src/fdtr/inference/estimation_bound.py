"""Theorem 3: how far a site's θ̂⁰ may be from the truth, with probability 1 − ξ.

    ‖θ̂⁰_{h,k} − θ⁰_h‖ ≤ α ‖(Σ_h^k)⁻¹‖^½,   α = c d H √ζ,   ζ = log(2dHN/ξ)

The theorem leaves c an absolute constant; its proof asks for 18(1 + 1/d) + 8 log 64c² ≤ c²/4, which c = 20 about
satisfies. With the small c that makes good policies the number is a scale, not a promise; it also rests on (1) and on
w = 1. Standard errors (`effects`) answer the practical question.
"""

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import log_term, penalty_scale
from fdtr.learners.backward import Settings
from fdtr.summary import Sums

Array = NDArray[np.float64]


def theorem3_bound(precision: Array, scale: float) -> Array:
    """α/√(smallest eigenvalue of Σ) of every step, (H,): the theorem as printed, which a site can compute at home.

    `precision` (H, d, d) is Σ, `scale` is α; both are in a policy.

    >>> theorem3_bound(np.array([np.diag([4.0, 25.0])]), scale=3.0)
    array([1.5])
    """
    return np.asarray(scale / np.sqrt(np.linalg.eigvalsh(precision)[:, 0]))


def theorem3_bound_from_total(total: Sums, n_features: int, settings: Settings) -> Array:
    """α/√(λ + smallest eigenvalue of Σ_j S_j) of every step, (H,): what the total alone says, the same for all sites.

    The proof bounds ‖θ̂ − θ‖_Σ by α, so that ‖θ̂⁰ − θ⁰‖ ≤ α‖(Σ⁻¹)_00‖^½. The inverse of that block is
    S^k_λ + Σ_{j≠k} S^j ⪰ Σ_j S^j + λI, S^k_λ being the site's own Schur complement with its ridge. This bound does not
    suffer from site-specific directions of Σ in which data are thin.

    `n_features` is d; `settings` hold c, λ and ξ; N is the number of patients at the first step, or at the first that
    not every site withheld.
    """
    known = total.n[total.n > 0]
    n = float(known[0]) if len(known) else 1.0
    zeta = log_term(n_features, total.horizon, n, settings.failure_probability)
    alpha = penalty_scale(settings.pessimism, n_features, total.horizon, zeta)
    smallest = np.linalg.eigvalsh(total.schur).min(axis=1, initial=np.inf)
    return np.asarray(alpha / np.sqrt(settings.ridge + np.maximum(smallest, 0.0)))
