"""Choose pessimism by how usual care did at a site, from the site's own folds.

Pessimism is larger where patients who got what clinicians usually give fared better (`judge_usual_care`), unless those
who got what the less pessimistic policy advises did better than those who got what the other advises
(`compare_policies`).

Where disclosure rules leave the other sites' sums uneven, these tell of some treatments only, and FDTR's penalty is
smaller at these: they would be advised because others may tell of them. Held-out patients then judge whether the site's
own penalty gives better advice (`OwnPenalty`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import LowerBound, NoiseUnits, argmax_first
from fdtr.algebra.threads import one_blas_thread, rows_in_cache
from fdtr.features import FeatureMap
from fdtr.learners.accumulate import future_values
from fdtr.trajectories import Step, Trajectories

Array = NDArray[np.float64]

USUAL_PESSIMISM, CAUTIOUS_PESSIMISM = NoiseUnits(0.03), NoiseUnits(0.1)
"""Pessimism of "auto": the usual one, and that of sites that stay closer to usual care."""

CRITICAL = 1.645
"""Upper 5% point of the standard normal distribution."""

BOLDER = 1.0
"""Standard errors by which a bolder policy's advice has to do better: a preference for usual care, and not a test."""

GUARD = 0.5
"""Standard errors by which the advice with a site's own penalty has to do better, as in the ladder."""

SHRINKAGE = 0.001
"""Ridge of the models of care, relative to the Gram's diagonal."""


@dataclass(frozen=True)
class UsualCare:
    """Whether patients who got what clinicians usually give fared better than other patients like them.

    `statistic` is about standard normal where they did not, or somewhat below. It is None where it says nothing: with
    too few patients, one treatment, or one outcome. `bolder` compares two policies where they differ, that of the
    smaller pessimism with that of the larger: above 0, patients fared better with the first one's advice. It is None
    where they were not compared.

    >>> UsualCare(2.9).pessimism, UsualCare(2.9, bolder=4.0).pessimism, UsualCare(-0.4).pessimism
    (NoiseUnits(noise=0.1), NoiseUnits(noise=0.03), NoiseUnits(noise=0.03))
    """

    statistic: float | None
    bolder: float | None = None

    @property
    def better(self) -> bool:
        """Whether patients with usual care fared better, at the one-sided level of 5%."""
        return self.statistic is not None and self.statistic > CRITICAL

    @property
    def closer(self) -> bool:
        """Whether the policy stays closer to usual care, which did better, and a bolder policy not better still."""
        return self.better and (self.bolder or 0.0) <= BOLDER

    @property
    def pessimism(self) -> NoiseUnits:
        """The pessimism to take: more of it keeps a policy closer to what clinicians usually do."""
        return CAUTIOUS_PESSIMISM if self.closer else USUAL_PESSIMISM

    def in_words(self, site: str) -> str:
        """How near to usual care a site's policy stays, and why, in one sentence."""
        if self.closer:
            return f"{site} stays closer to usual care: patients who got it fared better than others like them."
        if self.better:
            return (
                f"{site} does not stay closer to usual care: it did better than other care, but patients treated as a "
                "bolder policy advises did better still."
            )
        if self.statistic is None:
            return (
                f"{site} does not stay closer to usual care: it has too few patients to compare, or all were treated, "
                "or fared, alike."
            )
        return (
            f"{site} does not stay closer to usual care: no clear sign that patients who got it fared better than "
            "others like them."
        )


@dataclass(frozen=True)
class OwnPenalty:
    """Whether a site's own penalty gives better advice than that of uneven sums, with the same estimates.

    `statistic` compares the two policies where they differ (`compare_policies`): above 0, patients fared better with
    the advice of the own penalty. It is None where they were not compared, or advise the same.

    >>> OwnPenalty(0.7).taken, OwnPenalty(0.3).taken, OwnPenalty(None).taken
    (True, False, False)
    """

    statistic: float | None

    @property
    def taken(self) -> bool:
        """Whether the site's own penalty is taken."""
        return self.statistic is not None and self.statistic > GUARD

    def in_words(self, site: str) -> str:
        """Which penalty a site takes, and why, in one sentence."""
        uneven = "the other sites' sums tell of some treatments only"
        if self.taken:
            return f"{site} penalises by its own patients alone: {uneven}, and its patients fared better so."
        return (
            f"{site} penalises by all patients, although {uneven}: held-out patients did not show that its own penalty "
            "advises better."
        )


def judge_usual_care(
    rows: Trajectories, features: FeatureMap, folds: NDArray[np.intp], reference: Sequence[LowerBound]
) -> UsualCare:
    """Test on held-out patients whether usual care does better than other care of the same states.

    `_compare_care` with the weight w = b̂(A | x) − Σ_a b̂(a | x)². Confounding can raise or lower it, and so can
    what both models miss.
    """

    def weigh(_fold: int, _step: int, _psi: Array, propensity: Array, actions: NDArray[np.intp]) -> Array:
        given: Array = propensity[actions, np.arange(len(actions))]
        return np.asarray(given - np.einsum("an,an->n", propensity, propensity))

    return UsualCare(_compare_care(rows, features, folds, reference, weigh))


def compare_policies(
    rows: Trajectories,
    features: FeatureMap,
    folds: NDArray[np.intp],
    reference: Sequence[LowerBound],
    fit: Callable[[Trajectories], Sequence[Sequence[LowerBound]]],
) -> float | None:
    """Compare on held-out patients the advice of a second policy with that of a first: above 0, the second did better.

    This is about one decision, with V_ref afterwards. States count by b̂(π₁(x) | x) b̂(π₂(x) | x), so that it says
    little of treatments that clinicians hardly give.

    `fit(rows)` gives the bounds of both policies. They are fitted to the other folds, and compared where they differ:
    `_compare_care` with w = 1{A = π₂(x)} b̂(π₁(x) | x) − 1{A = π₁(x)} b̂(π₂(x) | x).
    """
    if len(np.unique(folds)) < 2:
        return None  # nobody to learn from
    order = np.argsort(features.levels, kind="stable")
    policies = {int(fold): fit(rows.select(folds != fold)) for fold in np.unique(folds)}

    def weigh(fold: int, step: int, psi: Array, propensity: Array, actions: NDArray[np.intp]) -> Array:
        first, second = (argmax_first(bounds[step].bounds(psi), order) for bounds in policies[fold])
        columns = np.arange(len(actions))
        weight = (actions == second) * propensity[first, columns] - (actions == first) * propensity[second, columns]
        return np.asarray(np.where(first != second, weight, 0.0))

    return _compare_care(rows, features, folds, reference, weigh)


def _compare_care(
    rows: Trajectories,
    features: FeatureMap,
    folds: NDArray[np.intp],
    reference: Sequence[LowerBound],
    weigh: Callable[[int, int, Array, Array, NDArray[np.intp]], Array],
) -> float | None:
    """Whether patients fared better the more the weight w of their treatment was: about N(0, 1) where they did not.

    With Y = r + V_ref(x'), and b̂(a | x) and m̂(x) = Ê[Y | x] fitted to the other folds, both linear in ψ(x) and its
    squares, so that a vital may be bad at both ends,

        t = Σ_i c_i / √Σ_i c_i²,   c_i = Σ_h w(A, x) {Y − m̂(x)}

    over the site's patients i, or its clusters. `weigh(fold, step, psi, propensity, actions)` gives w. It is 0 on
    average at every state if b̂ is right, and Y − m̂ is if m̂ is right; one of them is enough. None: nothing to compare.
    """
    next_values, horizon = [*reference[1:], None], range(rows.horizon)
    clusters = rows.cluster_codes()
    by_cluster = np.zeros(0 if clusters is None else int(clusters.max(initial=-1)) + 1)
    total = square = 0.0
    with one_blas_thread():
        models = [_models_of_care(rows.step(h), features, folds, next_values[h]) for h in horizon]
        steps = [_chunks(rows.step(h), features, next_values[h]) for h in horizon]
        for start, same_patients in zip(count(0, _size(features)), zip_longest(*steps), strict=False):
            terms = np.zeros(_size(features))
            for h, chunk in enumerate(same_patients):
                for part in [] if chunk is None else _by_fold(chunk, folds[start:]):
                    *by_action, mean = models[h][part.fold].T @ part.basis
                    propensity = np.maximum(by_action, 0.0)
                    propensity /= np.maximum(propensity.sum(axis=0), np.finfo(float).tiny)
                    weight = weigh(part.fold, h, part.psi, propensity, part.actions)
                    terms[part.patients] += weight * (part.target - mean)
            total += float(terms.sum())
            square += float(terms @ terms)
            if clusters is not None:
                here = clusters[start : start + len(terms)]
                np.add.at(by_cluster, here, terms[: len(here)])
    norm = float(np.sqrt(square)) if clusters is None else float(np.linalg.norm(by_cluster))
    return total / norm if norm > 0 else None


class _Part(NamedTuple):
    """Rows of one step and fold.

    `patients` (n,) are their places in the chunk; `psi` is (m, n); `basis` (2m, n) is ψ and its squares; `target` is Y.
    """

    fold: int
    patients: NDArray[np.intp]
    psi: Array
    basis: Array
    actions: NDArray[np.intp]
    target: Array


class _Rows(NamedTuple):
    """A chunk of one step: ψ (m, n), actions and Y (n,)."""

    psi: Array
    actions: NDArray[np.intp]
    target: Array


def _size(features: FeatureMap) -> int:
    """Rows of one chunk: the same at every step, so that chunks of several steps hold the same patients."""
    return rows_in_cache(features.n_functions)


def _chunks(step: Step, features: FeatureMap, next_value: LowerBound | None) -> Iterator[_Rows]:
    """The rows of a step, chunk by chunk; row i of a step is patient i."""
    for chunk in step.chunks(_size(features)):
        later = future_values(chunk, features, [next_value], np.empty((1, len(chunk.actions))))[0]
        yield _Rows(features.psi(chunk.states), chunk.actions, chunk.rewards + later)


def _by_fold(rows: _Rows, folds: NDArray[np.intp]) -> Iterator[_Part]:
    """A chunk fold by fold; `folds` begins with the chunk's first patient."""
    here = folds[: len(rows.actions)]
    for fold in np.unique(here).tolist():
        own = np.flatnonzero(here == fold)
        columns = np.ascontiguousarray(rows.psi[:, own])
        basis = np.concatenate([columns, columns**2])
        yield _Part(fold, own, columns, basis, rows.actions[own], rows.target[own])


def _models_of_care(step: Step, features: FeatureMap, folds: NDArray[np.intp], next_value: LowerBound | None) -> Array:
    """Coefficients of b̂ and m̂ fitted to all folds but one, (folds, 2m, A + 1)."""
    m, n_actions, n_folds = 2 * features.n_functions, features.n_actions, int(folds.max()) + 1
    grams, moments = np.zeros((n_folds, m, m)), np.zeros((n_folds, m, n_actions + 1))
    for start, rows in zip(count(0, _size(features)), _chunks(step, features, next_value), strict=False):
        for part in _by_fold(rows, folds[start:]):
            grams[part.fold] += part.basis @ part.basis.T
            moments[part.fold] += part.basis @ np.column_stack([np.eye(n_actions)[part.actions], part.target])
    train = grams.sum(axis=0) - grams
    # A square of a column in small units is smaller still: each has a ridge of its own size.
    ridge = SHRINKAGE * np.diagonal(train, axis1=1, axis2=2)
    ridge = np.where(ridge > 0, ridge, 1.0)  # a column that is 0 for everybody has no part in the models
    return np.asarray(np.linalg.solve(train + ridge[:, :, None] * np.eye(m), moments.sum(axis=0) - moments))
