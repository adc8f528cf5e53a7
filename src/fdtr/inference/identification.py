"""What one site's data can identify: which shared effects, and whether transitions follow the model.

Under (1) the next state depends on the site's own features alone; `transition_test` tests that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc

from fdtr.algebra.schur import RANK_TOLERANCE, eliminate, project
from fdtr.algebra.threads import on_one_blas_thread

Array = NDArray[np.float64]

REJECTION_LEVEL = 0.01


@dataclass(frozen=True)
class Identified:
    """How much information a site has on the effect of a shared feature.

    `retained` is the share of the feature's variation that the site's own features do not absorb, averaged over steps,
    between 0 and 1: S_jj over S_jj beside the site's own intercept alone. `reason` says why nothing is left; it is
    empty otherwise.
    """

    feature: str
    retained: float
    reason: str


@on_one_blas_thread
def identify(
    grams: Sequence[Array], names: Sequence[str], n_shared: int, intercepts: Sequence[int]
) -> list[Identified]:
    """How much information this site has on each shared feature, and if none, why.

    `grams` are ΦᵀΦ of each step, `names` the d features, `intercepts` the positions of the site's own intercept and
    its action terms: they absorb a covariate that is constant within the site.

    >>> gram = np.array([[2.0, 1.0, 2.0], [1.0, 1.0, 1.0], [2.0, 1.0, 4.0]])
    >>> identify([gram], ["x", "1", "y"], n_shared=1, intercepts=[1])
    [Identified(feature='x', retained=0.666..., reason='')]
    """
    shares = np.array([_retained(gram, n_shared, range(n_shared, len(names))) for gram in grams])
    beside_intercept = np.array([_retained(gram, n_shared, intercepts) for gram in grams])
    used = np.array([np.diagonal(gram)[:n_shared] > 0 for gram in grams])
    identified = []
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
        identified.append(Identified(names[j], share, reason))
    return identified


def _retained(gram: Array, n_shared: int, own: Sequence[int]) -> Array:
    """S_jj/Λ_jj of the shared features when the features `own` are projected out, (d0,)."""
    columns = [*range(n_shared), *own]
    part = gram[np.ix_(columns, columns)]
    schur = eliminate(part, np.zeros((len(columns), 0)), n_shared).schur
    diagonal = np.diagonal(gram)[:n_shared]
    return np.clip(np.diagonal(schur) / np.where(diagonal > 0, diagonal, 1.0), 0.0, 1.0)


@dataclass(frozen=True)
class FTest:
    """An F test: `statistic` on (`df_model`, `df_residual`) degrees of freedom; NaN where it cannot be computed."""

    statistic: float
    df_model: int
    df_residual: int
    p_value: float


@on_one_blas_thread
def transition_test(gram: Array, value_moment: Array, value_square: float, n: int, n_shared: int) -> FTest:
    """Test whether the shared features predict the next value, given the site's own. Under (1) they do not.

    F = (sᵀS⁺s / g) / (RSS / (n − rank Φ)) with s the moment of V_{h+1}(x'). A static shared covariate such as age
    predicts its own future and is found here; Cochran's Q of the rewards would not see it.

    `gram` (d, d) is ΦᵀΦ, `value_moment` (d,) ΦᵀV, `value_square` VᵀV, `n_shared` d0.

    >>> transition_test(np.eye(2) * 10, np.array([4.0, 1.0]), value_square=3.7, n=12, n_shared=1).statistic
    8.0
    """
    own = eliminate(gram, value_moment[:, None], n_shared)
    shared = project(own.schur, own.moments, gram[:n_shared, :n_shared])
    df_residual = n - own.rank_specific - shared.rank
    residual = value_square - own.explained[0] - shared.explained[0]
    if shared.rank == 0 or df_residual <= 0 or residual <= RANK_TOLERANCE * max(value_square, 1e-300):
        return FTest(np.nan, shared.rank, max(df_residual, 0), np.nan)
    statistic = (shared.explained[0] / shared.rank) / (residual / df_residual)
    return FTest(float(statistic), shared.rank, df_residual, float(fdtrc(shared.rank, df_residual, statistic)))


def rejected(tests: Sequence[FTest]) -> list[bool]:
    """Which of several tests reject at 1% after Bonferroni's correction.

    >>> rejected([FTest(9.0, 2, 90, 0.0003), FTest(3.5, 2, 90, 0.03)])
    [True, False]
    """
    n_tests = sum(not np.isnan(test.p_value) for test in tests)
    return [bool(test.p_value < REJECTION_LEVEL / n_tests) if n_tests else False for test in tests]
