"""Choose λ, the weight w, what to share, and pessimism from a site's own folds, without a further message.

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

    Σ_f D_f ≤ ½ √F sd(D_f)

Pessimism is larger where patients who got what clinicians usually give fared better (`judge_usual_care`), unless those
who got what the less pessimistic policy advises did better than those who got what the other advises
(`compare_policies`).

`fdtr.site.score_together` makes the scores of a site's own folds. These are made up, for two rungs on three folds; the
second is better on average, but by less than the folds differ:

>>> import numpy as np
>>> from fdtr.tuning import Candidate, Scores, choose
>>> candidates = (Candidate(0.01, 1.0, "value"), Candidate(0.01, 0.0, "value"))
>>> scores = Scores(candidates, error=np.array([[5.0, 5.1, 5.2], [5.1, 5.0, 5.15]]), contrast=np.zeros((2, 3)))
>>> choose(scores).candidate
Candidate(ridge=0.01, sharing=1.0, share='value')
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import LowerBound, NoiseUnits
from fdtr.algebra.schur import whiten
from fdtr.algebra.threads import one_blas_thread, rows_in_cache
from fdtr.features import FeatureMap
from fdtr.learners.accumulate import StepStatistics, accumulate_each, future_values
from fdtr.learners.federated import Others
from fdtr.trajectories import Step, Trajectories

__all__ = ["Candidate", "Choice", "Rung", "Scores", "UsualCare", "candidates_of", "choose"]

Array = NDArray[np.float64]
Share = Literal["value", "reward"]

N_FOLDS = 5
TOLERANCE = 0.5
"""Standard errors by which a rung may be worse than the best of all."""

RIDGES = (0.001, 0.003, 0.01)
LADDER: tuple[tuple[float, Share], ...] = (
    (1.0, "value"), (0.3, "value"), (0.1, "value"),
    (1.0, "reward"), (0.3, "reward"), (0.1, "reward"),
    (0.0, "value"),
)  # fmt: skip
"""(w, what is shared), from the paper's setting down to none of it."""

USUAL_PESSIMISM, CAUTIOUS_PESSIMISM = NoiseUnits(0.03), NoiseUnits(0.1)
"""Pessimism of "auto": the usual one, and that of sites that stay closer to usual care."""

CRITICAL = 1.645
"""Upper 5% point of the standard normal distribution."""

BOLDER = 1.0
"""Standard errors by which a bolder policy's advice has to do better: a preference for usual care, and not a test."""

SHRINKAGE = 0.001
"""Ridge of the models of care, relative to the mean of the Gram's diagonal."""


@dataclass(frozen=True)
class Candidate:
    """One setting: `ridge` λ, `sharing` w, and what is shared."""

    ridge: float
    sharing: float
    share: Share


def candidates_of(
    ridge: float | None = None, sharing: float | None = None, share: Share | None = None
) -> tuple[Candidate, ...]:
    """The candidates that are left open where a study fixes λ, w or what is shared; None leaves it open.

    They stand rung by rung, from the most sharing to none.

    >>> [(candidate.sharing, candidate.share) for candidate in candidates_of(ridge=0.01, share="reward")]
    [(1.0, 'reward'), (0.3, 'reward'), (0.1, 'reward'), (0.0, 'reward')]
    """
    weights = [w for w, kind in LADDER if kind == "value"] if sharing is None else [sharing]
    kinds: list[Share] = ["value", "reward"] if share is None else [share]
    rungs = [(w, kind) for kind in kinds for w in weights if w > 0]
    rungs += [(0.0, kinds[0])] if 0.0 in weights else []
    return tuple(Candidate(r, w, kind) for w, kind in rungs for r in (RIDGES if ridge is None else (ridge,)))


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


def sum_folds(
    rows: Trajectories, features: FeatureMap, folds: NDArray[np.intp], references: Sequence[Sequence[LowerBound]]
) -> FoldSums:
    """The sums of each fold that has patients, with V_ref from the bounds of each of the `references`."""
    parts: list[list[list[StepStatistics]]] = []
    next_values = [*zip(*(bounds[1:] for bounds in references), strict=True), [None] * len(references)]
    with one_blas_thread():
        for fold in np.unique(folds):
            part = rows.select(folds == fold)
            parts.append([accumulate_each(part.step(h), features, next_values[h]) for h in range(rows.horizon)])
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
    ridge = np.array([candidate.ridge for candidate in candidates])[:, None, None, None]
    weight = np.array([candidate.sharing for candidate in candidates])[:, None, None, None]
    by_value = np.array([candidate.share == "value" for candidate in candidates])
    together = gram + ridge * np.eye(gram.shape[-1])
    together[..., :n_shared, :n_shared] += weight * others.schur[h]
    right = rewards[..., None] + np.where(by_value[:, None, None, None], values, 0.0)
    theirs = np.where(by_value[:, None], others.schur_moment[h], others.schur_reward[h])
    right[..., :n_shared, :] += weight * theirs[:, None, :, None]
    thetas = np.linalg.solve(together, right)
    if not by_value.all():  # the value part alone depends on λ, and not on the weight
        ridges, place = np.unique(ridge[~by_value], return_inverse=True)
        own = gram + ridges[:, None, None, None] * np.eye(gram.shape[-1])
        thetas[~by_value] += np.linalg.solve(own, np.broadcast_to(values, (len(ridges), *values.shape)))[place.ravel()]
    return np.asarray(thetas)


def _without_main(gram: Array, moment: Array, main: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Gram and moment of the action terms with the main effects projected out of a fold."""
    whitener = whiten(gram[np.ix_(main, main)]).matrix
    cross = whitener.T @ gram[np.ix_(main, ~main)]
    projected = gram[np.ix_(~main, ~main)] - cross.T @ cross
    return projected, moment[~main] - cross.T @ (whitener.T @ moment[main])


@dataclass(frozen=True)
class Rung:
    """One way of sharing as the folds judge it: its best `candidate`, and by how much it is worse than the best of all.

    `excess` is Σ_f D_f, `tolerance` is ½ √F sd(D_f). The folds reject a rung whose excess is larger.
    """

    candidate: Candidate
    excess: float
    tolerance: float

    @property
    def rejected(self) -> bool:
        """Whether held-out patients do worse with it than is tolerated."""
        return self.excess > self.tolerance


@dataclass(frozen=True)
class UsualCare:
    """Whether patients who got what clinicians usually give fared better than other patients like them.

    `statistic` is about standard normal where they did not. `bolder` compares two policies where they differ, that of
    the smaller pessimism with that of the larger: above 0, patients fared better with the first one's advice. It is
    None where they were not compared.

    >>> UsualCare(2.9).pessimism, UsualCare(2.9, bolder=4.0).pessimism, UsualCare(-0.4).pessimism
    (NoiseUnits(noise=0.1), NoiseUnits(noise=0.03), NoiseUnits(noise=0.03))
    """

    statistic: float
    bolder: float | None = None

    @property
    def better(self) -> bool:
        """Whether patients with usual care fared better, at the one-sided level of 5%."""
        return self.statistic > CRITICAL

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
                f"{site} may leave usual care: it did better than other care, but patients treated as a bolder policy "
                "advises did better still."
            )
        if self.statistic == 0:
            return f"{site} may leave usual care: it has too few patients to say how they fared with it."
        return (
            f"{site} may leave usual care: no clear sign that patients who got it fared better than others like them."
        )


@dataclass(frozen=True)
class Choice:
    """What the folds chose: the `candidate`, and all `rungs` of the ladder from the most sharing to none.

    There are no rungs where the study leaves nothing open. `usual_care` says how usual care did; it is None where the
    study fixes the pessimism.

    >>> rungs = (Rung(Candidate(0.01, 1.0, "value"), 0.4, 0.1), Rung(Candidate(0.01, 0.3, "value"), 0.0, 0.0))
    >>> Choice(rungs[1].candidate, rungs).in_words("Ashford")
    'Ashford shares with weight 0.3: its held-out patients do better with it than with more.'
    """

    candidate: Candidate
    rungs: tuple[Rung, ...]
    usual_care: UsualCare | None = None

    def reasons(self, site: str) -> list[str]:
        """How far a site shares, how near to usual care it stays where that was open, and why: a sentence for each."""
        return [self.in_words(site), *([self.usual_care.in_words(site)] if self.usual_care else [])]

    def in_words(self, site: str) -> str:
        """How far a site shares, and why, in one sentence."""
        chosen = self.candidate
        if len(self.rungs) < 2:
            if not chosen.sharing:
                return f"{site} stays alone: nothing else was left open, or the other sites' sums say nothing yet."
            return f"{site} shares as the study says: nothing about sharing was left open."
        if not chosen.sharing:
            return f"{site} stays alone: its held-out patients do better without the others."
        weight = f"with weight {chosen.sharing:g}"
        if chosen.share == "value":
            extent = "fully" if chosen.sharing == 1 else weight
        else:
            extent = "effects on rewards alone" + (f", {weight}" if chosen.sharing < 1 else "")
        if math.isinf(self.rungs[0].tolerance):
            return f"{site} shares {extent}: it has too few patients, or clusters, to say more."
        verdict = "do not contradict it" if self.rungs[0].candidate == chosen else "do better with it than with more"
        return f"{site} shares {extent}: its held-out patients {verdict}."


def choose(scores: Scores) -> Choice:
    """The first rung of the ladder that held-out patients do not reject, with the λ that is best for it.

    With fewer than three folds nothing is rejected.
    """
    criterion = scores.error + scores.contrast
    n_folds = criterion.shape[1]
    places: dict[tuple[float, Share], list[int]] = {}
    for place, candidate in enumerate(scores.candidates):
        places.setdefault((candidate.sharing, candidate.share), []).append(place)
    sums = criterion.sum(axis=1)
    best = criterion[int(sums.argmin())]
    rungs = []
    for members in places.values():
        place = min(members, key=lambda member: sums[member])
        difference = criterion[place] - best
        tolerance = float(TOLERANCE * np.sqrt(n_folds) * difference.std(ddof=1)) if n_folds >= 3 else np.inf
        rungs.append(Rung(scores.candidates[place], float(difference.sum()), tolerance))
    return Choice(next(rung.candidate for rung in rungs if not rung.rejected), tuple(rungs))


def judge_usual_care(
    rows: Trajectories, features: FeatureMap, folds: NDArray[np.intp], reference: Sequence[LowerBound]
) -> UsualCare:
    """Test on held-out patients whether usual care does better than other care of the same states.

    `_compare_care` with the weight w = b̂(A | x) − Σ_a b̂(a | x)².
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
) -> float:
    """Compare on held-out patients the advice of a second policy with that of a first: above 0, the second did better.

    This is about one decision, with V_ref afterwards. States count by b̂(π₁(x) | x) b̂(π₂(x) | x), so that it says
    little of treatments that clinicians hardly give.

    `fit(rows)` gives the bounds of both policies. They are fitted to the other folds, and compared where they differ:
    `_compare_care` with w = 1{A = π₂(x)} b̂(π₁(x) | x) − 1{A = π₁(x)} b̂(π₂(x) | x).
    """
    if len(np.unique(folds)) < 2:
        return 0.0  # nobody to learn from
    policies = {int(fold): fit(rows.select(folds != fold)) for fold in np.unique(folds)}

    def weigh(fold: int, step: int, psi: Array, propensity: Array, actions: NDArray[np.intp]) -> Array:
        first, second = (bounds[step].bounds(psi).argmax(axis=0) for bounds in policies[fold])
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
) -> float:
    """Whether patients fared better the more the weight w of their treatment was: about N(0, 1) where they did not.

    With Y = r + V_ref(x'), and b̂(a | x) and m̂(x) = Ê[Y | x] fitted to the other folds, both linear in ψ(x),

        t = Σ_i c_i / √Σ_i c_i²,   c_i = Σ_h w(A, x) {Y − m̂(x)}

    over the site's patients i, or its clusters. `weigh(fold, step, psi, propensity, actions)` gives w, which is 0 on
    average at every state if b̂ is right. The second factor is if m̂ is: an error in one of the two does no harm.
    """
    next_values = [*reference[1:], None]
    terms = np.zeros(rows.n_patients)
    with one_blas_thread():
        for h in range(rows.horizon):
            models = _models_of_care(rows.step(h), features, folds, next_values[h])
            for part in _parts(rows.step(h), features, folds, next_values[h]):
                *by_action, mean = models[part.fold].T @ part.psi
                propensity = np.maximum(by_action, 0.0)
                propensity /= np.maximum(propensity.sum(axis=0), np.finfo(float).tiny)
                weight = weigh(part.fold, h, part.psi, propensity, part.actions)
                terms[part.patients] += weight * (part.target - mean)
    by_unit = np.bincount(rows.units.dictionary_encode().indices.to_numpy(), weights=terms)
    norm = float(np.linalg.norm(by_unit))
    return float(by_unit.sum()) / norm if norm > 0 else 0.0


class _Part(NamedTuple):
    """Rows of one step and fold: `patients` (n,) are their places at the site, `psi` (m, n), `target` (n,) is Y."""

    fold: int
    patients: NDArray[np.intp]
    psi: Array
    actions: NDArray[np.intp]
    target: Array


def _parts(step: Step, features: FeatureMap, folds: NDArray[np.intp], next_value: LowerBound | None) -> Iterator[_Part]:
    """The rows of a step, chunk by chunk and fold by fold; row i of a step is patient i."""
    start = 0
    for chunk in step.chunks(rows_in_cache(features.n_functions)):
        psi, stop = features.psi(chunk.states), start + len(chunk.actions)
        target = chunk.rewards + future_values(chunk, features, [next_value], np.empty((1, stop - start)))[0]
        for fold in range(int(folds.max()) + 1):
            own = np.flatnonzero(folds[start:stop] == fold)
            if len(own):  # few patients leave folds empty
                yield _Part(fold, start + own, np.ascontiguousarray(psi[:, own]), chunk.actions[own], target[own])
        start = stop


def _models_of_care(step: Step, features: FeatureMap, folds: NDArray[np.intp], next_value: LowerBound | None) -> Array:
    """Coefficients of b̂ and m̂ fitted to all folds but one, (folds, m, A + 1)."""
    m, n_actions, n_folds = features.n_functions, features.n_actions, int(folds.max()) + 1
    grams, moments = np.zeros((n_folds, m, m)), np.zeros((n_folds, m, n_actions + 1))
    for part in _parts(step, features, folds, next_value):
        grams[part.fold] += part.psi @ part.psi.T
        moments[part.fold] += part.psi @ np.column_stack([np.eye(n_actions)[part.actions], part.target])
    train = grams.sum(axis=0) - grams
    ridge = SHRINKAGE * np.trace(train, axis1=1, axis2=2) / m
    ridge[ridge == 0] = 1.0  # nobody to learn from: both models are 0
    return np.asarray(np.linalg.solve(train + ridge[:, None, None] * np.eye(m), moments.sum(axis=0) - moments))
