"""Choose λ, the weight w and what to share from a site's own folds, without a further message.

The paper's setting, w = 1 and values shared, stands unless held-out patients do better with less. Patients are split
into folds. With the targets Y = r + V_ref(x') fixed, scoring needs only each fold's Gram and moments. θ is solved
on the other folds plus w times the other sites' sums, which do not contain the site's rows, and scored on the fold left
out by C_f, the sum of

    held-out error    yᵀy − 2θᵀb + θᵀGθ
    contrast          −2θ_aᵀ b_{a·m} + θ_aᵀ G_{aa·m} θ_a

over steps and over two references: V_ref of the site alone, and of FDTR with w = 1, both at the settings of messages.
The second would make sharing look better than it is where sites differ, the first makes it look worse where patients
are few. The error judges predictions. The contrast projects the state's main effects m out of the fold and judges the
action terms a alone, by which a policy acts. A ladder lists (w, what is shared) from the most sharing to none. Each
rung has the λ that is best for it, and D_f = C_f(rung) − C_f(best of all). The first rung that stands is taken:

    Σ_f D_f ≤ τ √F sd(D_f),   τ = ½ max{1, (2d/n)^(3/2)}

A site with few patients, n < 2d, cannot estimate values alone. Its V_ref is that of FDTR, its ladder has no rungs that
share rewards alone, and it takes more to reject a rung.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import LowerBound
from fdtr.algebra.schur import whiten
from fdtr.algebra.threads import one_blas_thread
from fdtr.features import FeatureMap
from fdtr.learners.accumulate import StepStatistics, accumulate_folds
from fdtr.learners.federated import Others
from fdtr.trajectories import Trajectories
from fdtr.tuning.usual_care import OwnPenalty, UsualCare

Array = NDArray[np.float64]
Share = Literal["value", "reward"]

N_FOLDS = 5
_UNITS_AT_ONCE = 65_536
TOLERANCE = 0.5
"""Standard errors by which a rung may be worse than the best of all, at a site with enough patients."""

FEW = 2
"""A site with fewer patients for each feature has few."""

RIDGES = (0.001, 0.003, 0.01)
LADDER: tuple[tuple[float, Share], ...] = (
    (1.0, "value"), (0.3, "value"), (0.1, "value"),
    (1.0, "reward"), (0.3, "reward"), (0.1, "reward"),
    (0.0, "value"),
)  # fmt: skip
"""(w, what is shared), from the paper's setting down to none of it."""


@dataclass(frozen=True)
class Candidate:
    """One setting: `ridge` λ, `sharing` w, and what is shared."""

    ridge: float
    sharing: float
    share: Share


def candidates_of(
    ridge: float | None = None, sharing: float | None = None, share: Share | None = None, *, few: bool = False
) -> tuple[Candidate, ...]:
    """The candidates that are left open where a study fixes λ, w or what is shared; None leaves it open.

    They stand rung by rung, from the most sharing to none. A site with `few` patients does not share rewards alone,
    unless the study says so.

    >>> [(candidate.sharing, candidate.share) for candidate in candidates_of(ridge=0.01, share="reward")]
    [(1.0, 'reward'), (0.3, 'reward'), (0.1, 'reward'), (0.0, 'reward')]
    >>> [(candidate.sharing, candidate.share) for candidate in candidates_of(ridge=0.01, few=True)]
    [(1.0, 'value'), (0.3, 'value'), (0.1, 'value'), (0.0, 'value')]
    """
    weights = [w for w, kind in LADDER if kind == "value"] if sharing is None else [sharing]
    kinds: list[Share] = ["value", "reward"] if share is None else [share]
    rungs = [(w, kind) for kind in kinds for w in weights if w > 0]
    rungs += [(0.0, kinds[0])] if 0.0 in weights else []
    if few:
        rungs = [(w, kind) for w, kind in rungs if kind == "value"] or rungs
    return tuple(Candidate(r, w, kind) for w, kind in rungs for r in (RIDGES if ridge is None else (ridge,)))


def has_few(n: int, n_features: int) -> bool:
    """Whether `n` patients are too few for a site to estimate values alone.

    >>> has_few(50, n_features=88), has_few(200, n_features=88)
    (True, False)
    """
    return n < FEW * n_features


def tolerance_for(n: int, n_features: int) -> float:
    """τ, the standard errors by which a rung may be worse than the best of all, at a site with `n` patients.

    >>> tolerance_for(176, n_features=88), tolerance_for(44, n_features=88)
    (0.5, 4.0)
    """
    return float(TOLERANCE * max(1.0, FEW * n_features / max(n, 1)) ** 1.5)


@dataclass(frozen=True, repr=False)
class Scores:
    """Both criteria of every candidate on every fold, (candidates, folds): smaller is better."""

    candidates: tuple[Candidate, ...]
    error: Array
    contrast: Array


@dataclass(frozen=True, repr=False)
class FoldSums:
    """Sums of every fold and step, with the targets of each of R references.

    `gram` (F, H, d, d), `reward_moment` (F, H, d), `value_moment` (F, H, d, R), `target_square` (F, H, R).
    """

    gram: Array
    reward_moment: Array
    value_moment: Array
    target_square: Array


def assign_folds(units: Iterable[str], seed: int, n_folds: int = N_FOLDS, purpose: bytes = b"") -> NDArray[Any]:
    """The fold of each patient, from a hash of the id and the seed: no generator is needed, and folds never change.

    `units` are the patients' ids, or the labels of their clusters, each of which then lies in one fold. Another
    `purpose` (at most 16 bytes) gives independent folds: those for evaluation cut across those for tuning. The numbers
    take one byte each, where there are at most 256 folds.

    >>> assign_folds(["p1", "p2", "p3"], seed=0).tolist() == assign_folds(["p1", "p2", "p3"], seed=0).tolist()
    True
    """
    keyed = hashlib.blake2b(digest_size=8, key=seed.to_bytes(8, "little"), person=purpose)

    def digest(unit: str) -> bytes:
        whole = keyed.copy()
        whole.update(unit.encode())
        return whole.digest()

    dtype = np.min_scalar_type(n_folds - 1)
    folds, remaining = [np.zeros(0, dtype)], iter(units)
    while digests := b"".join(map(digest, islice(remaining, _UNITS_AT_ONCE))):
        folds.append((np.frombuffer(digests, "<u8") % np.uint64(n_folds)).astype(dtype))
    return np.concatenate(folds)


def sum_folds(
    rows: Trajectories, features: FeatureMap, folds: NDArray[np.intp], references: Sequence[Sequence[LowerBound]]
) -> FoldSums:
    """The sums of each fold that has patients, with V_ref from the bounds of each of the `references`."""
    next_values = [*zip(*(bounds[1:] for bounds in references), strict=True), [None] * len(references)]
    with one_blas_thread():
        steps = [accumulate_folds(rows.step(h), features, next_values[h], folds) for h in range(rows.horizon)]
    parts: list[list[list[StepStatistics]]] = [[step[fold] for step in steps] for fold in np.unique(folds)]
    value_moment = np.array([[[one.value_moment for one in step] for step in part] for part in parts])
    return FoldSums(
        gram=np.array([[step[0].gram for step in part] for part in parts]),
        reward_moment=np.array([[step[0].reward_moment for step in part] for part in parts]),
        value_moment=value_moment.swapaxes(-1, -2),
        target_square=np.array([[[one.target_square for one in step] for step in part] for part in parts]),
    )


def score(
    sums: FoldSums,
    others: Others,
    n_shared: int,
    main_effects: NDArray[np.bool_],
    candidates: tuple[Candidate, ...],
) -> Scores:
    """Both criteria of every candidate on every fold, summed over references.

    `n_shared` is d0, `main_effects` (d,) marks the features that do not change with the action.
    """
    shape = (len(candidates), len(sums.gram))
    error, contrast = np.zeros(shape), np.zeros(shape)
    moment = sums.reward_moment[..., None] + sums.value_moment
    with one_blas_thread():
        for h in range(sums.gram.shape[1]):
            thetas = _solve_step(sums, others, n_shared, h, candidates)
            gram, b = sums.gram[:, h], moment[:, h]
            fitted = np.einsum("cfdr,fde,cfer->cf", thetas, gram, thetas, optimize=True)
            error += sums.target_square[:, h].sum(axis=-1) - 2 * np.einsum("cfdr,fdr->cf", thetas, b) + fitted
            for fold in range(len(gram)):
                action_gram, action_moment = _without_main(gram[fold], b[fold], main_effects)
                action_terms = thetas[:, fold, ~main_effects]
                squares = np.einsum("cdr,de,cer->c", action_terms, action_gram, action_terms, optimize=True)
                contrast[:, fold] += squares - 2 * np.einsum("cdr,dr->c", action_terms, action_moment)
    return Scores(candidates, error, contrast)


def _solve_step(sums: FoldSums, others: Others, n_shared: int, h: int, candidates: Sequence[Candidate]) -> Array:
    """θ of every candidate on all folds but one, for each reference, (candidates, folds, d, R)."""
    train = [array[:, h].sum(axis=0) - array[:, h] for array in (sums.gram, sums.reward_moment, sums.value_moment)]
    gram, rewards, values = train
    pairs = list(dict.fromkeys((candidate.ridge, candidate.sharing) for candidate in candidates))
    ridge, weight = np.array(pairs).T[..., None, None, None]
    together = gram + ridge * np.eye(gram.shape[-1])
    together[..., :n_shared, :n_shared] += weight * others.schur[h]
    # One system for both kinds of sharing: a right side for each reference, and one for the rewards alone.
    right = np.concatenate([rewards[..., None] + values, rewards[..., None]], axis=-1)
    theirs = np.column_stack([*[others.schur_moment[h]] * values.shape[-1], others.schur_reward[h]])
    right = np.repeat(right[None], len(pairs), axis=0)
    right[..., :n_shared, :] += weight * theirs
    solutions = dict(zip(pairs, np.linalg.solve(together, right), strict=True))
    ridges = list(dict.fromkeys(candidate.ridge for candidate in candidates if candidate.share == "reward"))
    own = gram + np.reshape(ridges, (-1, 1, 1, 1)) * np.eye(gram.shape[-1])
    alone = dict(zip(ridges, np.linalg.solve(own, np.broadcast_to(values, (len(ridges), *values.shape))), strict=True))

    def theta(candidate: Candidate) -> Array:
        solution = solutions[candidate.ridge, candidate.sharing]
        if candidate.share == "value":
            return np.asarray(solution[..., :-1])
        return np.asarray(solution[..., -1:] + alone[candidate.ridge])  # the value part does not depend on the weight

    return np.stack([theta(candidate) for candidate in candidates])


def _without_main(gram: Array, moment: Array, main: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Gram and moment of the action terms with the main effects projected out of a fold."""
    whitener = whiten(gram[np.ix_(main, main)]).matrix
    cross = whitener.T @ gram[np.ix_(main, ~main)]
    projected = gram[np.ix_(~main, ~main)] - cross.T @ cross
    return projected, moment[~main] - cross.T @ (whitener.T @ moment[main])


@dataclass(frozen=True)
class Rung:
    """One way of sharing as the folds judge it: its best `candidate`, and by how much it is worse than the best of all.

    `excess` is Σ_f D_f, `tolerance` is τ √F sd(D_f). The folds reject a rung whose excess is larger.
    """

    candidate: Candidate
    excess: float
    tolerance: float

    @property
    def rejected(self) -> bool:
        """Whether held-out patients do worse with it than is tolerated."""
        return self.excess > self.tolerance


@dataclass(frozen=True)
class Choice:
    """What the folds chose: the `candidate`, and all `rungs` of the ladder from the most sharing to none.

    There are no rungs where the study leaves nothing open. `usual_care` says how usual care did; it is None where the
    study fixes the pessimism. `own_penalty` says whether the penalty is the site's own; it is None where that is no
    question. `few` says whether the site has few patients for the number of features. `error` is the held-out error of
    the best of all.

    >>> rungs = (Rung(Candidate(0.01, 1.0, "value"), 0.4, 0.1), Rung(Candidate(0.01, 0.3, "value"), 0.0, 0.0))
    >>> Choice(rungs[1].candidate, rungs).in_words("Ashford")
    'Ashford shares with weight 0.3: its held-out patients speak against sharing more.'
    """

    candidate: Candidate
    rungs: tuple[Rung, ...]
    usual_care: UsualCare | None = None
    own_penalty: OwnPenalty | None = None
    few: bool = False
    error: float = math.nan

    def reasons(self, site: str) -> list[str]:
        """How far a site shares, how near to usual care it stays, whose penalty it takes, and why, as far as chosen."""
        judged = [part for part in (self.usual_care, self.own_penalty) if part is not None]
        return [self.in_words(site), *(part.in_words(site) for part in judged)]

    def relative(self, criterion: float) -> float:
        """A rung's excess or tolerance as a share of `error`; NaN where that is 0, as with outcomes that are all 0."""
        return criterion / self.error if self.error > 0 else math.nan

    def in_words(self, site: str) -> str:
        """How far a site shares, and why, in one sentence."""
        chosen = self.candidate
        if len(self.rungs) < 2:
            if not chosen.sharing:
                return f"{site} stays alone: the study says so, or the other sites' sums say nothing yet."
            return f"{site} shares as the study says: there was no other way to choose."
        full = self.rungs[0]
        if not chosen.sharing:
            extent, verdict = "stays alone", "speak against sharing"
        else:
            weight = f"with weight {chosen.sharing:g}"
            if chosen.share == "value":
                extent = "shares fully" if chosen.sharing == 1 else f"shares {weight}"
            else:
                extent = "shares effects on rewards alone" + (f", {weight}" if chosen.sharing < 1 else "")
            verdict = "do not contradict it" if full.candidate == chosen else "speak against sharing more"
        if math.isinf(full.tolerance):
            return f"{site} {extent}: it has too few patients, or clusters, to say more."
        patients = "its held-out patients, few for so many features," if self.few else "its held-out patients"
        return f"{site} {extent}: {patients} {verdict}."


def choose(scores: Scores, tolerance: float = TOLERANCE, *, few: bool = False) -> Choice:
    """The first rung of the ladder that held-out patients do not reject, with the λ that is best for it.

    `tolerance` is τ, and `few` is noted in the choice. With fewer than three folds nothing is rejected.
    """
    criterion = scores.error + scores.contrast
    n_folds = criterion.shape[1]
    places: dict[tuple[float, Share], list[int]] = {}
    for place, candidate in enumerate(scores.candidates):
        places.setdefault((candidate.sharing, candidate.share), []).append(place)
    sums = criterion.sum(axis=1)
    best_place = int(sums.argmin())
    best, error = criterion[best_place], float(scores.error[best_place].sum())
    rungs = []
    for members in places.values():
        place = min(members, key=lambda member: sums[member])
        difference = criterion[place] - best
        tolerated = float(tolerance * np.sqrt(n_folds) * difference.std(ddof=1)) if n_folds >= 3 else np.inf
        rungs.append(Rung(scores.candidates[place], float(difference.sum()), tolerated))
    return Choice(next(rung.candidate for rung in rungs if not rung.rejected), tuple(rungs), few=few, error=error)
