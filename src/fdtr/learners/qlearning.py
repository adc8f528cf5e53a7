"""Q-learning by ordinary least squares at one site: the paper's baselines, without penalty or truncation."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import LowerBound
from fdtr.algebra.ridge import minimum_norm
from fdtr.algebra.threads import one_blas_thread
from fdtr.features import FeatureMap
from fdtr.learners.sweep import sweep
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class QFit:
    """`per_step` (H, d): Q-learn (H), one coefficient vector for each step; `single` (d,): Q-learn (1), one for all."""

    per_step: Array
    single: Array


def fit_q(rows: Trajectories, features: FeatureMap) -> QFit:
    """Both variants from one pass over each step.

    Q-learn (H) regresses r_h + max_a Q_{h+1} on φ, backwards. Q-learn (1) is one regression on the same
    pseudo-outcomes of all steps together, so its normal equations are the sum of theirs.
    """
    following: LowerBound | None = None
    thetas: list[Array] = []
    gram, moment = np.zeros((features.n_features,) * 2), np.zeros(features.n_features)
    with one_blas_thread():
        for h in reversed(range(rows.horizon)):
            sums = sweep(rows.step(h), features, following)
            theta = minimum_norm(sums.gram, sums.moment)
            following = LowerBound.of_plain(theta, features.embeddings)
            thetas.append(theta)
            gram += sums.gram
            moment += sums.moment
        return QFit(np.stack(thetas[::-1]), minimum_norm(gram, moment))
