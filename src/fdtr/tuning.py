"""Choose λ, the weight w, what to share, and c from a site's own folds, without a further message.

The site's patients are split into folds. With the targets Y = r + V_ref(x') fixed, scoring needs only each fold's Gram
and moments. θ is solved on the other folds plus w times the other sites' sums, which do not contain the site's rows,
and scored on the fold left out by

    held-out error    yᵀy − 2θᵀb + θᵀGθ
    contrast          −2θ_aᵀ b_{a·m} + θ_aᵀ G_{aa·m} θ_a

The first judges predictions. The second projects the state's main effects m out of the fold and judges the action
terms a alone, by which a policy acts. A whole grid costs one pass over the data and small solves.

`fdtr.site.score_together` makes the scores of a site's own folds. These are made up, for two candidates on two folds:

>>> import numpy as np
>>> from fdtr.tuning import Grid, Scores, choose, least_contrast, least_error
>>> candidates = Grid(ridges=(0.01, 1.0), weights=(0.0,)).candidates
>>> error, contrast = np.array([[5.0, 5.1], [5.1, 5.3]]), np.array([[0.9, 0.4], [0.1, 0.2]])
>>> scores = Scores(candidates, error, contrast)
>>> least_error(scores)
Candidate(ridge=0.01, sharing=0.0, share='value')
>>> least_contrast(scores)
Candidate(ridge=1.0, sharing=0.0, share='value')
>>> choose(scores)
Candidate(ridge=1.0, sharing=0.0, share='value')
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.schur import whiten
from fdtr.algebra.threads import one_blas_thread
from fdtr.evaluation.fitted_q import fitted_q_values
from fdtr.features import FeatureMap
from fdtr.learners.accumulate import StepStatistics, accumulate
from fdtr.learners.backward import Settings
from fdtr.learners.federated import Others, fit_with_each
from fdtr.learners.local import fit_local
from fdtr.trajectories import Trajectories

__all__ = [
    "USUAL_PESSIMISM",
    "Candidate",
    "Grid",
    "Scores",
    "choose",
    "least_contrast",
    "least_error",
]

Array = NDArray[np.float64]
Share = Literal["value", "reward"]

N_FOLDS = 5
REFERENCE_RIDGE = 1e-5
USUAL_PESSIMISM = 0.0005
PESSIMISMS = (0.0, 0.0002, 0.001, 0.002, 0.005)


@dataclass(frozen=True)
class Grid:
    """The values to choose from: λ, w (0 is alone), and what is shared."""

    ridges: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
    weights: tuple[float, ...] = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    shares: tuple[Share, ...] = ("value", "reward")

    @property
    def candidates(self) -> "tuple[Candidate, ...]":
        """Every combination once. Without sharing (w = 0) only the first of `shares` is used."""
        pairs = [(w, share) for share in self.shares for w in self.weights if w > 0 or share == self.shares[0]]
        return tuple(Candidate(ridge, w, share) for ridge in self.ridges for w, share in pairs)


@dataclass(frozen=True)
class Candidate:
    """One setting: `ridge` λ, `sharing` w, and what is shared."""

    ridge: float
    sharing: float
    share: Share


@dataclass(frozen=True, repr=False)
class Scores:
    """Both criteria of every candidate on every fold, (candidates, folds): smaller is better."""

    candidates: tuple[Candidate, ...]
    error: Array
    contrast: Array


@dataclass(frozen=True, repr=False)
class FoldSums:
    """Sums of every fold and step with the reference targets.

    `gram` (F, H, d, d), `reward_moment` and `value_moment` (F, H, d), `target_square` (F, H).
    """

    gram: Array
    reward_moment: Array
    value_moment: Array
    target_square: Array


def assign_folds(units: Iterable[str], seed: int, n_folds: int = N_FOLDS, purpose: bytes = b"") -> NDArray[np.intp]:
    """The fold of each patient, from a hash of the id and the seed: no generator is needed, and folds never change.

    `units` are the patients' ids, or the labels of their clusters, each of which then lies in one fold. Another
    `purpose` (at most 16 bytes) gives independent folds: those for evaluation cut across those for tuning.

    >>> assign_folds(["p1", "p2", "p3"], seed=0).tolist() == assign_folds(["p1", "p2", "p3"], seed=0).tolist()
    True
    """
    key = seed.to_bytes(8, "little")
    hashes = (hashlib.blake2b(unit.encode(), digest_size=8, key=key, person=purpose) for unit in units)
    return np.fromiter((int.from_bytes(h.digest(), "little") % n_folds for h in hashes), dtype=np.intp)


def sum_folds(rows: Trajectories, features: FeatureMap, folds: NDArray[np.intp]) -> FoldSums:
    """The sums of each fold, with V_ref from the site's own fit without a penalty and with a tiny ridge."""
    plain = Settings(pessimism=0.0, ridge=REFERENCE_RIDGE, failure_probability=0.5, misspecification=0.0)
    bounds = fit_local(rows, features, plain).bounds
    parts: list[list[StepStatistics]] = []
    with one_blas_thread():
        for fold in range(int(folds.max(initial=0)) + 1):
            part = rows.select(folds == fold)
            next_values = [*bounds[1:], None]
            parts.append([accumulate(part.step(h), features, next_values[h]) for h in range(rows.horizon)])
    return FoldSums(
        gram=np.array([[step.gram for step in part] for part in parts]),
        reward_moment=np.array([[step.reward_moment for step in part] for part in parts]),
        value_moment=np.array([[step.value_moment for step in part] for part in parts]),
        target_square=np.array([[step.target_square for step in part] for part in parts]),
    )


def score(sums: FoldSums, others: Others, n_shared: int, main_effects: NDArray[np.bool_], grid: Grid) -> Scores:
    """Both criteria of every candidate of the grid on every fold.

    `n_shared` is d0, `main_effects` (d,) marks the features that do not change with the action.
    """
    candidates = grid.candidates
    shape = (len(candidates), len(sums.gram))
    error, contrast = np.zeros(shape), np.zeros(shape)
    moment = sums.reward_moment + sums.value_moment
    for h in range(sums.gram.shape[1]):
        thetas = _solve_step(sums, others, n_shared, h, candidates)
        gram, b = sums.gram[:, h], moment[:, h]
        fitted = np.einsum("cfd,fde,cfe->cf", thetas, gram, thetas, optimize=True)
        error += sums.target_square[:, h] - 2 * np.einsum("cfd,fd->cf", thetas, b) + fitted
        for fold in range(len(gram)):
            action_gram, action_moment = _without_main(gram[fold], b[fold], main_effects)
            action_terms = thetas[:, fold, ~main_effects]
            squares = np.einsum("cd,de,ce->c", action_terms, action_gram, action_terms)
            contrast[:, fold] += squares - 2 * action_terms @ action_moment
    return Scores(candidates, error, contrast)


def _solve_step(sums: FoldSums, others: Others, n_shared: int, h: int, candidates: Sequence[Candidate]) -> Array:
    """θ of every candidate on all folds but one, (candidates, folds, d)."""
    train = [array[:, h].sum(axis=0) - array[:, h] for array in (sums.gram, sums.reward_moment, sums.value_moment)]
    gram, rewards, values = train
    ridge = np.array([candidate.ridge for candidate in candidates])[:, None, None, None]
    weight = np.array([candidate.sharing for candidate in candidates])[:, None, None]
    by_value = np.array([candidate.share == "value" for candidate in candidates])
    alone = gram + ridge * np.eye(gram.shape[-1])
    together = alone.copy()
    together[..., :n_shared, :n_shared] += weight[..., None] * others.schur[h]
    right = np.where(by_value[:, None, None], rewards + values, rewards)
    theirs = np.where(by_value[:, None], others.schur_moment[h], others.schur_reward[h])
    right[..., :n_shared] += weight * theirs[:, None]
    thetas = _solve(together, right)
    thetas[~by_value] += _solve(alone[~by_value], np.broadcast_to(values, right[~by_value].shape))
    return thetas


def _solve(matrices: Array, right: Array) -> Array:
    return np.asarray(np.linalg.solve(matrices, right[..., None])[..., 0])


def _without_main(gram: Array, moment: Array, main: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Gram and moment of the action terms with the main effects projected out of a fold."""
    whitener = whiten(gram[np.ix_(main, main)]).matrix
    cross = whitener.T @ gram[np.ix_(main, ~main)]
    projected = gram[np.ix_(~main, ~main)] - cross.T @ cross
    return projected, moment[~main] - cross.T @ (whitener.T @ moment[main])


def choose(scores: Scores) -> Candidate:
    """The candidate with the smallest sum of both criteria.

    Held-out error alone gives the action terms, by which a policy acts, no more weight than the main effects. The
    contrast alone is noise where actions differ little, and then chooses far too much ridge.
    `make reproduce WHAT=tuning` compares the three.
    """
    return _least(scores, scores.error + scores.contrast)


def least_error(scores: Scores) -> Candidate:
    """The candidate with the smallest held-out error."""
    return _least(scores, scores.error)


def least_contrast(scores: Scores) -> Candidate:
    """The candidate with the smallest error of contrasts."""
    return _least(scores, scores.contrast)


def _least(scores: Scores, criterion: Array) -> Candidate:
    """The candidate with the smallest sum over folds; the first of equals."""
    return scores.candidates[int(criterion.sum(axis=1).argmin())]


@dataclass(frozen=True)
class PessimismGain:
    """A value of c compared with the usual one: mean `gain` in fitted-Q value over folds, and its standard error."""

    pessimism: float
    gain: float
    standard_error: float


def judge_pessimism(
    rows: Trajectories,
    features: FeatureMap,
    folds: NDArray[np.intp],
    others: Others,
    candidate: Candidate,
    settings: Settings,
) -> tuple[PessimismGain, ...]:
    """Cross-fitted gains of every c in `PESSIMISMS` over `USUAL_PESSIMISM`, with λ, w and sharing as in `candidate`.

    A policy is fitted to all folds but one, plus the others' sums, and evaluated on the fold left out. Held-out
    fitted-Q values are too high and do not see extrapolation. They are only compared with each other, never reported.
    """
    pessimisms = (USUAL_PESSIMISM, *PESSIMISMS)
    usable_folds = [fold for fold in range(N_FOLDS) if (folds == fold).any() and (folds != fold).any()]
    n = len(usable_folds)
    values = np.empty((n, len(pessimisms)))
    tuned = replace(settings, ridge=candidate.ridge)
    for row, fold in zip(values, usable_folds, strict=True):
        train, held_out = rows.select(folds != fold), rows.select(folds == fold)
        fits = fit_with_each(train, features, tuned, others, candidate.sharing, candidate.share, pessimisms)
        row[:] = fitted_q_values(held_out, features, [fit.bounds for fit in fits])
    compared = []
    for c, gains in zip(PESSIMISMS, (values[:, 1:] - values[:, :1]).T, strict=True):
        error = float(gains.std(ddof=1) / np.sqrt(n)) if n > 1 else np.inf
        compared.append(PessimismGain(c, float(gains.mean()) if n else 0.0, error))
    return tuple(compared)


def choose_pessimism(compared: Sequence[PessimismGain]) -> float:
    """The usual c, unless the gain of another exceeds two standard errors; then the one with the largest gain.

    >>> choose_pessimism([PessimismGain(0.0, 0.03, 0.01), PessimismGain(0.002, 0.05, 0.03)])
    0.0
    """
    clear = [other for other in compared if other.gain > 2 * other.standard_error]
    return max(clear, key=lambda other: other.gain).pessimism if clear else USUAL_PESSIMISM
