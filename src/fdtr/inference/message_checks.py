"""Checks of messages: each site against the rest at the hub, and the total against a site's own patients.

*At the hub: leave one out.* With information A_j and moment a_j of site j, and A, a without an index those of the rest
together, the effects of the two are apart by

    X_j = a_jᵀA_j⁺a_j + aᵀA⁺a − (a_j + a)ᵀ(A_j + A)⁺(a_j + a),   df_j = rank A_j + rank A − rank (A_j + A),

summed over steps. Sites may differ in truth: as much as the rest differ among themselves is no reason to name one.
With Q the spread of the rest (Cochran's Q) and df_Q its degrees of freedom, and with effects that vary between sites by
τ²Ω (Ω the inverse of the mean information), E X_j = φ df_j + τ² t_j and E Q = φ df_Q + τ² t_Q. So the ratio is

    rewards, from (W, v), where φ = 1:         X_j / (df_j + τ̂² t_j),   τ̂² = max(0, Q − df_Q) / t_Q
    values, from (S, s), where φ is unknown:   X_j / max(Q df_j / df_Q, Q t_j / t_Q)

and an F with ν and ν(K − 2) degrees of freedom, where ν is the number of independent directions in which sites differ.
They are far fewer than H·d0 where steps share a cause: the value of a step contains those of later ones, and a site
that differs in one effect differs in it at every step. ν is √d̂, between 1 and H·d0. The two traces in
d̂ = (tr Σ)²/tr Σ² are estimated without bias from the residual scores r_i = a_i − A_i A⁺a of the K − 1 sites of the
rest. The root is taken because few sites tell d̂ badly; it was chosen on simulations.

One wrong message makes the others look different, because each is compared with a rest that contains it, and two hide
each other. So the site that stands out most is set aside and the others are tested again, while those set aside are a
minority; the last clear finding names all that were set aside up to it (Rosner, 1983). Bonferroni's correction counts
two tests, every choice of sites to set aside without naming them, and half of the level for each further one, so that
the level is that of naming anybody at all. A finding is a reason to call a site, and no proof: its patients may differ.
Messages that are wrong in agreement with the others are not found.

In simulated worlds (H = 5, d0 = 4) with 5 sites of 1000 patients, a site that flips the sign of its moments, sends
three times as much or a tenth of S was named in all of 60 runs, and one that sends another s of the same size in 37 of
40; with 300 patients a flipped sign in 62%, three times as much in 93% and a tenth of S in all, and among the demo's
hospitals (d0 = 15, some 270 patients) a flipped sign in 13 to 17% and three times as much in all. When all messages
were right, at most 1 of 60 runs named a site: 5 or 9 sites alike, of 80 to 1000 patients, sites with covariates that
stay as they are over a patient's steps, with effects that differ in truth, and in worlds where no model is linear.
Where sites differed in one effect alone, at every step and by many standard errors, up to 7% did. What differs in truth
hides what is wrong: among sites whose effects differ by half of their size a flipped sign was named in 32 to 37%. Of
three sites hardly ever one is named.

*At a site: held-out patients.* In a secure sum nobody can compare one site's message with the others'. A site can still
fit with the total and without it on a part of its patients, and compare both on the rest. That finds harm, not every
wrong message. With 5 sites of 1000 patients, one of which multiplied its moments, honest sites saw a factor of 10 or
−10 always, −3 in three of four cases, and 3 or a flipped sign hardly ever, because four right messages outweigh such a
one. Cochran's Q of the total (`heterogeneity`) shows rewards that contradict each other, without naming a site.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import comb
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, stdtr

from fdtr.algebra.normal_equations import invert
from fdtr.sums import Sums

Array = NDArray[np.float64]

NAMING_LEVEL = 0.05
"""Probability of naming any site where all are alike, or differ from each other as the rest of them do."""

HARM_LEVEL = 0.01
"""Probability of calling a total harmful that does neither harm nor good."""

_FEWEST = 3  # with two sites that differ, nobody can say which is the other one
_TESTS = 2
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Suspicion:
    """A site that differs from the others in its effects on rewards or on values, with the corrected p-value."""

    site: str
    name: Literal["rewards-differ", "values-differ"]
    p_value: float

    @property
    def sentence(self) -> str:
        """The finding in words, for the hub."""
        what = "rewards" if self.name == "rewards-differ" else "values"
        return (
            f"Site {self.site!r} differs from the others in what the shared features do to {what}, by more than the "
            f"others differ among themselves (p = {self.p_value:.1g}). This does not say that it is wrong: its "
            "patients or its care may be different; or its table, units or codes are wrong, or its message was "
            "changed. Call the site. It is in the total: leave its file out and combine again if it should not be."
        )


def suspicions(messages: Mapping[str, Sums], level: float = NAMING_LEVEL) -> tuple[Suspicion, ...]:
    """The sites that differ from the others by more than these among themselves, the clearest first.

    At most a minority is named, and nobody among two. With `level` as the chance, anybody is named where none differs.

    >>> suspicions({})
    ()
    """
    remaining = dict(sorted(messages.items()))
    aside: list[Suspicion] = []
    named = 0
    while len(remaining) >= _FEWEST and 2 * (len(aside) + 1) < len(messages):
        unnamed = len(aside) - named
        tests = _TESTS * len(remaining) * comb(len(messages) - named, unnamed) * 2 ** (unnamed + 1)
        aside.append(_stands_out(remaining, tests))
        del remaining[aside[-1].site]
        if aside[-1].p_value < level:
            named = len(aside)
    p_values = np.minimum.accumulate([one.p_value for one in aside[:named]][::-1])[::-1]
    return tuple(replace(one, p_value=float(p)) for one, p in zip(aside[:named], p_values, strict=True))


def _stands_out(messages: Mapping[str, Sums], tests: int) -> Suspicion:
    """The site with the smallest p-value, and Bonferroni's correction of it for so many `tests`."""
    sums = list(messages.values())
    rewards = _test(
        np.stack([site.information for site in sums]), np.stack([site.information_moment for site in sums]), noise=1.0
    )
    values = _test(np.stack([site.schur for site in sums]), np.stack([site.schur_moment for site in sums]), noise=None)
    p_values = np.minimum(rewards.p_value, values.p_value)
    # Where p-values are equal (0 to rounding), the larger ratio counts.
    worst = int(np.lexsort((-np.maximum(rewards.ratio, values.ratio), p_values))[0])
    by_reward = rewards.p_value[worst] <= values.p_value[worst]
    name: Literal["rewards-differ", "values-differ"] = "rewards-differ" if by_reward else "values-differ"
    return Suspicion(list(messages)[worst], name, float(min(1.0, p_values[worst] * tests)))


@dataclass(frozen=True, eq=False)
class _Tested:
    """One test of every site: `p_value` (K,), and `ratio` (K,), X over its expectation."""

    p_value: Array
    ratio: Array


def _test(information: Array, moments: Array, noise: float | None) -> _Tested:
    """Test every site; `noise` is φ, None where it is unknown."""
    against = _against_rest(information, moments)
    statistic, df, rest_df = (getattr(against, name).sum(axis=1) for name in ("statistic", "df", "rest_df"))
    spread, trace, rest_trace = (getattr(against, name).sum(axis=1) for name in ("rest_spread", "trace", "rest_trace"))
    varies = rest_trace > _ROUNDING * np.abs(trace)  # noised sums may tell nothing of how the others differ
    by_difference = np.divide(trace, rest_trace, out=np.zeros_like(trace), where=varies)  # t_j / t_Q
    if noise is None:
        expected = spread * np.maximum(df / np.maximum(rest_df, 1), by_difference)
    else:
        expected = noise * df + np.maximum(spread - noise * rest_df, 0.0) * by_difference
    comparable = (df > 0) & (rest_df > 0) & (expected > 0)
    ratio = np.where(comparable, statistic / np.where(comparable, expected, 1.0), 0.0)
    directions = np.sqrt(_directions(information, moments)).clip(1.0, np.prod(information.shape[1:3]))
    p_values = fdtrc(directions, directions * max(len(information) - 2, 1), ratio)
    return _Tested(np.where(comparable, p_values, 1.0), ratio)


def _directions(information: Array, moments: Array) -> Array:
    """d̂ of the rest of every site, (K,): in how many independent directions, over all steps, the others differ.

    With m = K − 2 and G the products r_iᵀA⁺r_k of the residual scores, tr Σ² is (m tr G² − (tr G)²)/(m(m−1)(m+2)), and
    (tr Σ)² is ((tr G)² − 2m tr Σ²)/m². One direction where K = 3, since two sites tell nothing of it.
    """
    n_sites, m = len(information), len(information) - 2
    if m < 2:
        return np.ones(n_sites)
    found = np.ones(n_sites)
    for site in range(n_sites):
        rest, scores = np.delete(information, site, axis=0), np.delete(moments, site, axis=0)
        inverse = invert(rest.sum(axis=0))
        residual = scores - np.einsum("khij,hj->khi", rest, inverse.solve(scores.sum(axis=0)))
        weighted = residual[:, :, None, :] @ inverse.matrix  # in two steps: at once, the work grows far faster with K
        products = weighted.reshape(len(rest), -1) @ residual.reshape(len(rest), -1).T
        trace, square = float(np.trace(products)), float(np.sum(products**2))
        of_square = (m * square - trace**2) / (m * (m - 1) * (m + 2))
        squared = (trace**2 - 2 * m * of_square) / m**2
        if trace > 0:
            found[site] = squared / of_square if of_square > 0 else np.inf
    return found


@dataclass(frozen=True, eq=False)
class _Against:
    """Every site against the rest at every step, (K, H) each: X, its df and t; and Q of the rest with its df and t."""

    statistic: Array
    df: NDArray[np.intp]
    trace: Array
    rest_spread: Array
    rest_df: NDArray[np.intp]
    rest_trace: Array


def _against_rest(information: Array, moments: Array) -> _Against:
    """X of every site and step. `information` (K, H, d0, d0) stacks A, `moments` (K, H, d0) a."""
    total, total_moment = information.sum(axis=0), moments.sum(axis=0)
    own, own_rank = _explained(information, moments)
    rest, rest_rank = _explained(total - information, total_moment - moments)
    together, rank = _explained(total[None], total_moment[None])
    trace, rest_trace = _traces(information)
    return _Against(
        statistic=np.maximum(own + rest - together, 0.0),
        df=np.maximum(own_rank + rest_rank - rank, 0),
        trace=trace,
        rest_spread=np.maximum(own.sum(axis=0) - own - rest, 0.0),
        rest_df=np.maximum(own_rank.sum(axis=0) - own_rank - rest_rank, 0),
        rest_trace=rest_trace,
    )


def _traces(information: Array) -> tuple[Array, Array]:
    """t_j and t_Q, (K, H) each: what effects that vary between sites by Ω add to X and to Q.

    With M = A_j − A_j(A_j + A)⁺A_j and B = Σ_{i≠j} A_iΩA_i: t_j = tr M(Ω + A⁺BA⁺) and t_Q = tr AΩ − tr A⁺B.
    """
    n_sites, total = len(information), information.sum(axis=0)
    inverse = invert(total).matrix
    varied = inverse * n_sites  # Ω
    around = information @ varied @ information
    others = around.sum(axis=0) - around
    rest = total - information
    rest_inverse = invert(rest.reshape(-1, *rest.shape[2:])).matrix.reshape(rest.shape)
    parallel = information - information @ inverse @ information
    gap = np.einsum("khij,khji->kh", parallel, varied + rest_inverse @ others @ rest_inverse)
    spread = np.einsum("khij,hji->kh", rest, varied) - np.einsum("khij,khji->kh", rest_inverse, others)
    return np.maximum(gap, 0.0), np.maximum(spread, 0.0)


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
