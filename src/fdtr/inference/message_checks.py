"""Checks for wrong messages: each site against the rest at the hub, and the total against a site's own patients.

*At the hub: leave one out.* With information A_j and moment a_j of site j, and A, a without an index those of the rest
together, the effects of the two differ by more than noise where

    X_j = a_jᵀA_j⁺a_j + aᵀA⁺a − (a_j + a)ᵀ(A_j + A)⁺(a_j + a),   df_j = rank A_j + rank A − rank (A_j + A)

is large. Each message is tested twice. The test of *rewards* takes (W, v), whose noise is known: X is χ², and adds over
steps. The test of *values* takes (S, s), whose noise is not in a message: X/df is compared with Cochran's Q/df of the
rest among themselves, an F at each step, and Fisher's method combines the steps. This allows for values that differ
between sites.

One wrong message makes the others look wrong, because each is compared with a rest that contains it. So the site that
stands out most is set aside and the others are tested again, as long as those set aside are a minority. A finding is a
reason to call a site, not a proof: its patients may differ. A message that is wrong in agreement with the others is not
found.

In simulated worlds (H = 5, d0 = 4) with 5 sites of 1000 patients, a site that flips the sign of its moments, sends
three times as much or a tenth of S was named in all of 190 runs, and one that sends another s of the same size in 99%;
with 300 patients in 99% and 67%. When all messages were right, 0.3 to 2.3% of 400 runs named a site, and 12% where
shared covariates are constant over a patient's steps, so that values differ between sites.

*At a site: held-out patients.* In a secure sum nobody can compare one site's message with the others'. A site can still
fit with the total and without it on a part of its patients, and compare both on the rest. That finds harm, not every
wrong message. With 5 sites of 1000 patients, one of which multiplied its moments, honest sites saw a factor of 10 or
−10 always, −3 in three of four cases, and 3 or a flipped sign hardly ever, because four right messages outweigh such a
one. Cochran's Q of the total (`heterogeneity`) shows rewards that contradict each other, without naming a site.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, fdtrc, stdtr

from fdtr.algebra.normal_equations import invert
from fdtr.summary import Sums

Array = NDArray[np.float64]

SUSPICION_LEVEL = 0.01
"""Probability of naming any site when all messages are right."""

HARM_LEVEL = 0.01
"""Probability of calling a total harmful that does neither harm nor good."""

_FEWEST = 3  # with two sites that differ, nobody can say which is wrong
_TESTS = 2


@dataclass(frozen=True)
class Suspicion:
    """A site whose message contradicts the others' in its effects on rewards or on values, with the p-value."""

    site: str
    name: Literal["rewards-contradict", "values-contradict"]
    p_value: float

    @property
    def sentence(self) -> str:
        """The finding in words, for the hub."""
        what = "rewards" if self.name == "rewards-contradict" else "values"
        return (
            f"Site {self.site!r} contradicts the others in what the shared features do to {what} (p = "
            f"{self.p_value:.1g}). Call the site: its table, units or codes may be wrong, its message tampered "
            "with, or its patients different. It is in the total: leave its file out and combine again if it should "
            "not be."
        )


def suspicions(messages: Mapping[str, Sums], level: float = SUSPICION_LEVEL) -> tuple[Suspicion, ...]:
    """The sites whose message contradicts the others', the clearest first; at most a minority, none among two sites.

    >>> suspicions({})
    ()
    """
    remaining = dict(sorted(messages.items()))
    suspects: list[Suspicion] = []
    while len(remaining) >= _FEWEST and 2 * (len(suspects) + 1) < len(messages):
        worst = _worst(remaining, level)
        if worst is None:
            break
        suspects.append(worst)
        del remaining[worst.site]
    return tuple(suspects)


def _worst(messages: Mapping[str, Sums], level: float) -> Suspicion | None:
    """The site with the smallest p-value, if it is small after Bonferroni's correction."""
    sums = list(messages.values())
    rewards = _test_rewards(sums)
    values = _test_values(sums)
    p_values = np.minimum(rewards.p_value, values.p_value)
    # Where p-values are equal (0 to rounding), the larger statistic counts.
    worst = int(np.lexsort((-np.maximum(rewards.ratio, values.ratio), p_values))[0])
    if not p_values[worst] * _TESTS * len(sums) < level:
        return None
    by_reward = rewards.p_value[worst] <= values.p_value[worst]
    return Suspicion(
        list(messages)[worst],
        "rewards-contradict" if by_reward else "values-contradict",
        float(min(1.0, p_values[worst] * _TESTS * len(sums))),
    )


@dataclass(frozen=True, eq=False)
class _Tested:
    """One test of every site: `p_value` (K,), and `ratio` (K,), the statistic over its expectation under noise."""

    p_value: Array
    ratio: Array


def _test_rewards(sums: Sequence[Sums]) -> _Tested:
    information, moments = np.stack([site.information for site in sums]), [site.information_moment for site in sums]
    each = _against_rest(information, np.stack(moments))
    statistic, df = each.statistic.sum(axis=1), each.df.sum(axis=1)
    return _Tested(np.where(df > 0, chdtrc(np.maximum(df, 1), statistic), 1.0), statistic / np.maximum(df, 1))


def _test_values(sums: Sequence[Sums]) -> _Tested:
    each = _against_rest(np.stack([site.schur for site in sums]), np.stack([site.schur_moment for site in sums]))
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


@dataclass(frozen=True)
class OwnCheck:
    """Losses of held-out patients with the others' sums minus those alone: mean `difference`, with its p-value.

    "worse-than-alone": the total does harm at this site. Its patients may differ from all others', or the total may
    contain a wrong message; one site alone cannot tell which.
    """

    name: Literal["no-worse", "worse-than-alone"]
    difference: float
    standard_error: float
    p_value: float

    @property
    def sentence(self) -> str:
        """The result in words, for the site."""
        if self.name == "no-worse":
            return "The others' sums do no harm on this site's own held-out patients."
        return (
            f"Fitted with the others, this site's own held-out patients are predicted worse than without them (p = "
            f"{self.p_value:.1g}). Its patients may differ from all others', or a message in the total may be wrong: "
            "compare with other sites before using this policy, or use the one fitted alone."
        )


def compare_held_out(alone: Array, together: Array, level: float = HARM_LEVEL) -> OwnCheck:
    """A one-sided paired t test of losses; smaller losses are better.

    `alone` and `together` (m,) are the losses of the same held-out patients, or of the same folds of them.

    >>> compare_held_out(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 3.1, 3.9, 5.0])).name
    'worse-than-alone'
    """
    differences = np.asarray(together) - np.asarray(alone)
    m, mean = len(differences), float(np.mean(differences)) if len(differences) else 0.0
    error = float(np.std(differences, ddof=1) / np.sqrt(m)) if m > 1 else float("nan")
    if m < 2 or error == 0.0:  # nothing to compare, or differences that do not vary
        return OwnCheck("no-worse", mean, error, 1.0)
    p_value = float(stdtr(m - 1, -mean / error))
    return OwnCheck("worse-than-alone" if p_value < level else "no-worse", mean, error, p_value)
