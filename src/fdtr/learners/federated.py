"""FDTR, the paper's Algorithm 2: pessimistic value iteration with shared effects estimated from all sites.

Site k minimises (9). The minimiser (10) depends on the other sites only through the sums S⁻ᵏ and s⁻ᵏ of their Schur
complements (`fdtr.algebra.schur`), which are also what (11) adds to Λ. With a weight w on these sums,

    Σ = Λ + λI + blockdiag(w S⁻ᵏ, 0)   (11),    θ = Σ⁻¹ [b + (w s⁻ᵏ, 0)]   (10),    N_w = n + w (N − n),

where w = 1 is the paper and w = 0 is LDTR. The penalty is (12) with α of (13) at N = N_w (`fdtr.algebra.pessimism`).

`share = "reward"` estimates the effects on the reward with the others and those on the next value at the site alone,
with the local penalty, that of Λ + λI and n. It is valid where a shared covariate predicts the next state (a static one
such as age), which breaks (1). `Settings.own_penalty` takes the local penalty with θ of (10): where disclosure rules
leave S⁻ᵏ uneven, Γ is smaller at the treatments that it tells of, which are the frequent ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.normal_equations import factor, solve
from fdtr.algebra.pessimism import NoiseUnits
from fdtr.features import FeatureMap
from fdtr.learners.accumulate import StepStatistics
from fdtr.learners.backward import Fit, Settings, Solution, fit_backward, moments_of
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class Others:
    """The other sites' sums.

    `schur` (H, d0, d0) is S⁻ᵏ, `schur_moment` (H, d0) is s⁻ᵏ, `schur_reward` (H, d0) is s⁻ᵏ of the rewards alone, and
    `n` is the number of their patients at the first step. `uneven` says that disclosure rules left some effects at some
    actions only.
    """

    schur: Array
    schur_moment: Array
    schur_reward: Array
    n: float
    uneven: bool = False


def fit_federated(
    rows: Trajectories,
    features: FeatureMap,
    settings: Settings,
    others: Others,
    sharing: float = 1.0,
    share: Literal["value", "reward"] = "value",
) -> Fit:
    """FDTR for one site: θ of (10), Σ of (11). `sharing` is w; `share` is what is estimated with the others."""
    return fit_with_each(rows, features, settings, others, sharing, share, (settings.pessimism,))[0]


def fit_with_each(
    rows: Trajectories,
    features: FeatureMap,
    settings: Settings,
    others: Others,
    sharing: float,
    share: Literal["value", "reward"],
    pessimisms: Sequence[float | NoiseUnits],
) -> list[Fit]:
    """FDTR for each of `pessimisms`, in place of that in `settings`. The fits share all passes over the data."""

    def share_values(h: int, sums: Sequence[StepStatistics]) -> Solution:
        precision = precision_with_others(sums[0].gram, others.schur[h], sharing, settings.ridge)
        moments = moment_with_others(moments_of(sums), others.schur_moment[h][:, None], sharing)
        lower = factor(precision)
        penalised = alone(sums[0]) if settings.own_penalty else (precision, lower)
        return Solution(solve(lower, moments), *penalised)

    def share_rewards(h: int, sums: Sequence[StepStatistics]) -> Solution:
        together = precision_with_others(sums[0].gram, others.schur[h], sharing, settings.ridge)
        moment = moment_with_others(sums[0].reward_moment, others.schur_reward[h], sharing)
        reward_part = solve(factor(together), moment)
        precision, lower = alone(sums[0])
        values = np.column_stack([step.value_moment for step in sums])
        return Solution(reward_part[:, None] + solve(lower, values), precision, lower)

    def alone(sums: StepStatistics) -> tuple[Array, Array]:
        """Λ + λI, and its factor."""
        precision = sums.gram + settings.ridge * np.eye(features.n_features)
        return precision, factor(precision)

    own_penalty = settings.own_penalty or share == "reward"
    n = rows.n_patients + (0.0 if own_penalty else sharing * others.n)
    solve_step = share_values if share == "value" else share_rewards
    return fit_backward(rows, features, solve_step, settings, n, pessimisms)


def precision_with_others(gram: Array, schur: Array, sharing: float, ridge: float) -> Array:
    """Σ = Λ + λI + blockdiag(w S⁻ᵏ, 0) of (11), from the site's own `gram` Λ (d, d) and `schur` S⁻ᵏ (d0, d0)."""
    precision = gram.copy()
    precision[: len(schur), : len(schur)] += sharing * schur
    return precision + ridge * np.eye(len(gram))


def moment_with_others(moment: Array, schur_moment: Array, sharing: float) -> Array:
    """b + (w s⁻ᵏ, 0) of (10), from the site's own `moment` b (d,) and `schur_moment` s⁻ᵏ (d0,), or columns of them."""
    total = moment.copy()
    total[: len(schur_moment)] += sharing * schur_moment
    return total
