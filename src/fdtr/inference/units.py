"""Coefficients in raw units: from scaled features and mapped rewards to what a clinician reads."""

import numpy as np
from numpy.typing import NDArray

from fdtr.features import FeatureMap
from fdtr.features.bases import Linear, Polynomial

Array = NDArray[np.float64]


def raw_factors(features: FeatureMap, reward_low: float, reward_high: float) -> Array:
    """What to multiply each shared coefficient and its standard error by, (d0,), for raw units.

    φ_j = p(a)·f(z)/‖·‖ with z = (x − low)/(high − low), and the mapped reward is (r − low)/(high − low). So

        raw effect = θ_j · (reward's range) / (largest norm) / (covariate's range)^power

    is the change of the raw reward for one raw unit of a linear covariate; for its power q the coefficient of
    (x − low)^q. Intercepts and levels of a category are contrasts already, and splines and waves have no unit: they
    keep their functions, and only the reward's range and the norm count. Action terms stay as the study codes them:
    with `scale = "unit"` a·x is the difference between the highest and the lowest action for one unit of x.
    """
    norm = 1.0 / float(features.embeddings[0, features.main_effects].max())
    uses = np.abs(features.embeddings[:, : features.n_shared]).max(axis=0)  # (d0, m): which function each feature has
    per_function = np.ones(features.n_functions)
    for block in features.blocks:
        if isinstance(block.basis, Linear | Polynomial):
            factor = block.basis.affine[1]
            per_function[block.rows] = factor ** np.arange(1, block.basis.size + 1)
    factors: Array = (reward_high - reward_low) / norm * per_function[uses.argmax(axis=1)]
    return factors
