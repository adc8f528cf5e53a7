"""Do transitions hold? Under (1) the next state depends on the site's own features alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc

from fdtr.algebra.schur import RANK_TOLERANCE, eliminate, project

Array = NDArray[np.float64]

REJECTION_LEVEL = 0.01


@dataclass(frozen=True)
class FTest:
    """An F test: `statistic` on (`df_model`, `df_residual`) degrees of freedom; NaN where it cannot be made."""

    statistic: float
    df_model: int
    df_residual: int
    p_value: float


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
