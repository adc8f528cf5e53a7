"""What the data can tell: which shared effects are identified, and whether the model's transitions hold."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc

from fdtr.algebra.schur import RANK_TOLERANCE, eliminate, project

Array = NDArray[np.float64]

SMALL_P = 0.05
"""What a table of p-values marks; several small ones are expected by chance where there are many tests."""

REJECTION_LEVEL = 0.01


@dataclass(frozen=True)
class FTest:
    """An F test: `statistic` on (`df_model`, `df_residual`) degrees of freedom; NaN where it cannot be made."""

    statistic: float
    df_model: int
    df_residual: int
    p_value: float


@dataclass(frozen=True)
class Identified:
    """How much of a shared feature is left once the site's own effects are free.

    `retained` is the share of its variation that the site's own features do not absorb, averaged over steps, between
    0 and 1: S_jj over what S_jj would be beside the site's own intercept alone. `reason` says why nothing is left,
    else it is empty.
    """

    feature: str
    retained: float
    reason: str


def transition_test(gram: Array, value_moment: Array, value_square: float, n: int, n_shared: int) -> FTest:
    """Do the shared features predict the next value, given the site's own? Under (1) they do not.

    F = (sᵀS⁺s / g) / (RSS / (n − rank Φ)) with s the moment of V_{h+1}(x'). A static shared covariate such as age
    predicts its own future and is found here; Cochran's Q of the rewards would not see it.

    `gram` (d, d) is ΦᵀΦ, `value_moment` (d,) ΦᵀV, `value_square` VᵀV, `n_shared` d0.
    """
    own = eliminate(gram, value_moment[:, None], n_shared)
    kept = project(own.schur, own.moments, gram[:n_shared, :n_shared])
    spare = n - own.rank_specific - kept.rank
    left = value_square - own.explained[0]
    residual = left - kept.explained[0]
    if kept.rank == 0 or spare <= 0 or residual <= RANK_TOLERANCE * max(value_square, 1e-300):
        return FTest(np.nan, kept.rank, max(spare, 0), np.nan)
    statistic = (kept.explained[0] / kept.rank) / (residual / spare)
    return FTest(float(statistic), kept.rank, spare, float(fdtrc(kept.rank, spare, statistic)))


def rejected(tests: Sequence[FTest]) -> list[bool]:
    """Which of several tests reject at 1% after Bonferroni: one small p among many says little.

    >>> rejected([FTest(9.0, 2, 90, 0.0003), FTest(3.5, 2, 90, 0.03)])
    [True, False]
    """
    made = sum(not np.isnan(test.p_value) for test in tests)
    return [bool(test.p_value < REJECTION_LEVEL / made) if made else False for test in tests]


def identify(
    grams: Sequence[Array], names: Sequence[str], n_shared: int, intercepts: Sequence[int]
) -> list[Identified]:
    """For each shared feature, how much information it carries at this site, and if none, why.

    `grams` are ΦᵀΦ of every step, `names` the d features, `intercepts` the positions of the site's own intercept and
    its action terms: a covariate that is constant within a site is absorbed by them.
    """
    shares = np.array([_retained(gram, n_shared, range(n_shared, len(names))) for gram in grams])
    beside_intercept = np.array([_retained(gram, n_shared, intercepts) for gram in grams])
    used = np.array([np.diagonal(gram)[:n_shared] > 0 for gram in grams])
    found = []
    for j in range(n_shared):
        reason = ""
        if not used[:, j].any():
            reason = "it is zero for every patient: its action is never used, or its covariate is at the range's end"
        elif shares[:, j].max() < RANK_TOLERANCE:
            constant = bool(len(intercepts)) and beside_intercept[:, j].max() < RANK_TOLERANCE
            reason = (
                "it is constant within the site, so the site's own intercept absorbs it"
                if constant
                else "it is a combination of the site's own features, which absorb it"
            )
        varying = beside_intercept[:, j] > RANK_TOLERANCE
        share = (
            float(np.mean(shares[varying, j] / beside_intercept[varying, j])) if varying.any() and not reason else 0.0
        )
        found.append(Identified(names[j], share, reason))
    return found


def _retained(gram: Array, n_shared: int, own: Sequence[int]) -> Array:
    """S_jj/Λ_jj of the shared features beside the features `own`, (d0,)."""
    kept = [*range(n_shared), *own]
    part = gram[np.ix_(kept, kept)]
    schur = eliminate(part, np.zeros((len(kept), 0)), n_shared).schur
    diagonal = np.diagonal(gram)[:n_shared]
    return np.clip(np.diagonal(schur) / np.where(diagonal > 0, diagonal, 1.0), 0.0, 1.0)
