"""Does one site's message contradict the others'? Each site against the rest, from their sums.

With information A_j and moment a_j of site j, and A, a without an index those of the rest together, the effects of the
two differ by more than noise where

    X_j = a_jᵀA_j⁺a_j + aᵀA⁺a − (a_j + a)ᵀ(A_j + A)⁺(a_j + a),   df_j = rank A_j + rank A − rank (A_j + A)

is large. Two such tests look at a message. *Rewards* take (W, v), whose noise is known: X is χ², and adds over steps.
*Values* take (S, s), whose noise is not in a message: X/df is set against Cochran's Q/df of the rest among themselves,
an F at each step, and Fisher's method puts the steps together. It also allows for values that differ between sites.

One wrong message makes the others look wrong, because it is part of what each is set against. So the site that stands
out most is put aside and the others are tried again, as long as those put aside are a minority. What is found is a
reason to call a site, not a proof: its patients may differ, and a message that is wrong in keeping with the others is
not found.

In simulated worlds (H = 5, d0 = 4) of 5 sites with 1000 patients each, one that flips the sign of its moments, sends
three times as much or a tenth of S was named in all of 190 runs, and one that sends another s of the same size in 99%;
with 300 patients in 99% and 67%. All being right, 0.3 to 2.3% of 400 runs named a site. Where shared covariates stay
the same over a patient's steps, so that values differ between sites, it was 12%.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, fdtrc

from fdtr.inference.inverse import invert
from fdtr.summary import Sums

Array = NDArray[np.float64]

SUSPICION = 0.01
"""Chance of naming any site at all when all are right."""

_FEWEST = 3  # of two that differ nobody can say which is wrong
_TESTS = 2


@dataclass(frozen=True)
class Suspicion:
    """A site whose message contradicts the others': in its effects on rewards or on values, with the p-value."""

    site: str
    name: Literal["rewards-contradict", "values-contradict"]
    p_value: float

    @property
    def sentence(self) -> str:
        """For the hub's eyes."""
        what = "rewards" if self.name == "rewards-contradict" else "values"
        return (
            f"Site {self.site!r} contradicts the others in what the shared features do to {what} (p = "
            f"{self.p_value:.1g}). Call the site: its table, units or codes may be wrong, its message tampered "
            "with, or its patients different. It is in the total: leave its file out and combine again if it should "
            "not be."
        )


def suspicions(messages: Mapping[str, Sums], level: float = SUSPICION) -> tuple[Suspicion, ...]:
    """The sites that contradict the others, the clearest first; at most a minority, and none among two sites."""
    left = dict(sorted(messages.items()))
    found: list[Suspicion] = []
    while len(left) >= _FEWEST and 2 * (len(found) + 1) < len(messages):
        worst = _worst(left, level)
        if worst is None:
            break
        found.append(worst)
        del left[worst.site]
    return tuple(found)


def _worst(left: Mapping[str, Sums], level: float) -> Suspicion | None:
    """The site with the smallest p-value, if that is small for so many tests."""
    sums = list(left.values())
    rewards = _test_rewards(sums)
    values = _test_values(sums)
    p_values = np.minimum(rewards.p_value, values.p_value)
    # Beyond what a p-value can tell apart, the larger statistic counts.
    worst = int(np.lexsort((-np.maximum(rewards.ratio, values.ratio), p_values))[0])
    if not p_values[worst] * _TESTS * len(sums) < level:
        return None
    by_reward = rewards.p_value[worst] <= values.p_value[worst]
    return Suspicion(
        list(left)[worst],
        "rewards-contradict" if by_reward else "values-contradict",
        float(min(1.0, p_values[worst] * _TESTS * len(sums))),
    )


@dataclass(frozen=True, eq=False)
class _Tested:
    """One test of every site: `p_value` (K,), and `ratio` (K,), how many times what noise gives was found."""

    p_value: Array
    ratio: Array


def _test_rewards(sums: Sequence[Sums]) -> _Tested:
    each = _against_rest(
        np.stack([one.information for one in sums]), np.stack([one.information_moment for one in sums])
    )
    statistic, df = each.statistic.sum(axis=1), each.df.sum(axis=1)
    return _Tested(np.where(df > 0, chdtrc(np.maximum(df, 1), statistic), 1.0), statistic / np.maximum(df, 1))


def _test_values(sums: Sequence[Sums]) -> _Tested:
    each = _against_rest(np.stack([one.schur for one in sums]), np.stack([one.schur_moment for one in sums]))
    comparable = (each.df > 0) & (each.rest_df > 0)
    noise = np.where(comparable, each.rest_spread / np.maximum(each.rest_df, 1), 1.0)
    floor = np.finfo(float).tiny
    ratio = np.where(comparable, each.statistic / np.maximum(each.df, 1) / np.maximum(noise, floor), 0.0)
    by_step = np.where(comparable, fdtrc(np.maximum(each.df, 1), np.maximum(each.rest_df, 1), ratio), 1.0)
    steps = comparable.sum(axis=1)
    fisher = -2.0 * np.sum(np.log(np.maximum(by_step, floor)), axis=1)
    return _Tested(np.where(steps > 0, chdtrc(np.maximum(2 * steps, 1), fisher), 1.0), ratio.max(axis=1, initial=0.0))


@dataclass(frozen=True, eq=False)
class _Against:
    """Every site against the rest at every step, (K, H) each: X and its df, and Q and its df of the rest."""

    statistic: Array
    df: NDArray[np.intp]
    rest_spread: Array
    rest_df: NDArray[np.intp]


def _against_rest(information: Array, moments: Array) -> _Against:
    """X of every site and step. `information` (K, H, d0, d0) stacks A, `moments` (K, H, d0) a."""
    total, total_moment = information.sum(axis=0), moments.sum(axis=0)
    own, own_rank = _explained(information, moments)
    rest, rest_rank = _explained(total - information, total_moment - moments)
    together, rank = _explained(total[None], total_moment[None])
    return _Against(
        statistic=np.maximum(own + rest - together, 0.0),
        df=np.maximum(own_rank + rest_rank - rank, 0),
        rest_spread=np.maximum(own.sum(axis=0) - own - rest, 0.0),
        rest_df=np.maximum(own_rank.sum(axis=0) - own_rank - rest_rank, 0),
    )


def _explained(information: Array, moments: Array) -> tuple[Array, NDArray[np.intp]]:
    """aᵀA⁺a and the rank of A, (K, H) each."""
    flat = invert(information.reshape(-1, *information.shape[2:]))
    square = flat.quadratic(moments.reshape(-1, moments.shape[-1]))
    return square.reshape(information.shape[:2]), flat.rank.reshape(information.shape[:2])
