"""Propensities: how likely each action was at the hands of a site's clinicians, from patients the model did not see.

    log b(a | x) / b(a' | x) = ⟨β_a − β_a', (1, ψ(x))⟩

A multinomial logistic regression on the study's own functions of the state, standardised, with a mild ridge; one for
each step, or one for all steps with an indicator of each step but the first. It is cross-fitted: a patient's chances
come from the model fitted to the other folds.

Weights that nothing normalises (`pdis`) take the model fitted to all patients instead. 1/b̂ is convex in b̂, so that with
a model of other patients' the weights average more than 1, by O(p/n) at every step; maximum likelihood on the patients
themselves balances their own scores, Σ_i (1{a_i = a} − b̂(a | x_i)) ψ(x_i) ≈ 0, and takes that back (Hirano, Imbens and
Ridder, 2003).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.evaluation.cautions import Caution
from fdtr.evaluation.logistic import Fitted, fit_and_predict
from fdtr.evaluation.paths import ByStep, Paths, state_functions, taken
from fdtr.evaluation.troubles import Troubles
from fdtr.features import FeatureMap

Array = NDArray[np.float64]
Folds = NDArray[np.intp]
Steps = Literal["auto", "each", "pooled"]

FLOOR = 0.001
"""The least chance that any action is given: what was never seen is not impossible, and nothing is divided by 0."""

ROWS_PER_COEFFICIENT = 10
"""With fewer rows than this at some step, "auto" fits one model for all steps."""


@dataclass(frozen=True, eq=False, repr=False)
class Propensities:
    """`chances` (A, n_h) of every step sum to 1 over actions; `in_sample`: the same from the model of all patients.

    `pooled`: one model for all steps.
    """

    chances: ByStep
    in_sample: ByStep
    pooled: bool
    cautions: tuple[Caution, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class _Design:
    """Rows of one model: `columns` (rows, p), `actions` (rows,), `patients` (rows,) and `steps` (rows,)."""

    columns: Array
    actions: NDArray[np.intp]
    patients: NDArray[np.intp]
    steps: NDArray[np.intp]


def fit_propensities(
    paths: Paths, features: FeatureMap, folds: Folds, steps: Steps = "auto", floor: float = FLOOR
) -> Propensities:
    """Chances of every action for every patient and step, cross-fitted and in sample.

    `folds` (n,) are positions 0 … F−1, one a patient. What went wrong is told in cautions, not raised.
    """
    n_actions = features.n_actions
    kept, labels = _state_columns(features)
    psi = tuple(functions[kept] for functions in state_functions(paths, features))
    pooled = steps == "pooled" or (steps == "auto" and not _enough(paths, n_actions, len(labels)))
    designs = [_pool(psi, paths)] if pooled else [_single(psi, paths, h) for h in range(paths.horizon)]
    troubles = Troubles(features.levels, labels, floor)
    usual = _frequencies(paths, n_actions, folds)
    found, own = ([np.empty((n_actions, count)) for count in paths.counts] for _ in range(2))
    for design in designs:
        everybody = fit_and_predict(design.columns, design.actions, design.columns, n_actions)
        if everybody is not None:
            _spread(everybody.chances, design, np.ones(len(design.actions), dtype=bool), own)
        for fold in range(int(folds.max(initial=0)) + 1):
            held_out = folds[design.patients] == fold
            if not held_out.any():
                continue
            fitted = fit_and_predict(
                design.columns[~held_out], design.actions[~held_out], design.columns[held_out], n_actions
            )
            chances = usual[fold][:, None] if fitted is None else fitted.chances
            _note(troubles, design, held_out, fitted, None if pooled else int(design.steps[0]))
            _spread(chances, design, held_out, found)
    troubles.note_counts(_action_counts(paths, n_actions))
    troubles.note_floored(_below(found, paths, floor), sum(paths.counts))
    return Propensities(_floored(found, floor), _floored(own, floor), pooled, troubles.cautions())


def known_propensities(chances: ByStep) -> Propensities:
    """Propensities that need no estimate, as in a trial: `chances` (A, n_h) of every step."""
    return Propensities(chances, chances, pooled=False)


def _state_columns(features: FeatureMap) -> tuple[list[int], tuple[str, ...]]:
    """Rows of ψ without the intercept, and their names."""
    rows: list[int] = []
    labels: list[str] = []
    for block in features.blocks:
        if block.basis is not None:
            rows += range(block.rows.start, block.rows.stop)
            labels += block.labels
    return rows, tuple(labels)


def _enough(paths: Paths, n_actions: int, n_columns: int) -> bool:
    """Whether every step that anybody reached has rows for a model of its own."""
    asked = ROWS_PER_COEFFICIENT * (n_actions - 1) * (n_columns + 1)
    return all(count >= asked for count in paths.counts if count)


def _single(psi: ByStep, paths: Paths, h: int) -> _Design:
    count = paths.counts[h]
    return _Design(psi[h].T, paths.actions[h], np.arange(count), np.full(count, h))


def _pool(psi: ByStep, paths: Paths) -> _Design:
    steps = np.repeat(np.arange(paths.horizon), paths.counts)
    reached = [h for h in range(1, paths.horizon) if paths.counts[h]]
    indicators = (steps[:, None] == np.array(reached, dtype=np.intp)).astype(np.float64)
    return _Design(
        np.hstack([np.hstack(psi).T, indicators]),
        np.concatenate(paths.actions),
        np.concatenate([np.arange(count) for count in paths.counts]),
        steps,
    )


def _spread(chances: Array, design: _Design, held_out: NDArray[np.bool_], into: Sequence[Array]) -> None:
    """Write predictions to where their patients and steps belong."""
    patients, steps = design.patients[held_out], design.steps[held_out]
    chances = np.broadcast_to(chances, (len(chances), len(patients)))
    for h in np.unique(steps):
        into[h][:, patients[steps == h]] = chances[:, steps == h]


def _frequencies(paths: Paths, n_actions: int, folds: Folds) -> Array:
    """How often each action was used in the other folds, (F, A): where a model has no rows to learn from."""
    counts = np.zeros((int(folds.max(initial=0)) + 1, n_actions))
    for actions in paths.actions:
        np.add.at(counts, (folds[: len(actions)], actions), 1.0)
    others = counts.sum(axis=0) - counts
    total = others.sum(axis=1, keepdims=True)
    return np.where(total > 0, others / np.maximum(total, 1.0), 1.0 / n_actions)


def _action_counts(paths: Paths, n_actions: int) -> NDArray[np.intp]:
    """(H, A)."""
    return np.array([np.bincount(actions, minlength=n_actions) for actions in paths.actions])


def _below(found: Sequence[Array], paths: Paths, floor: float) -> int:
    return sum(int((taken(c, a) < floor).sum()) for c, a in zip(found, paths.actions, strict=True))


def _floored(found: Sequence[Array], floor: float) -> ByStep:
    raised = [np.maximum(chances, floor) for chances in found]
    return tuple(chances / chances.sum(axis=0) for chances in raised)


def _note(
    troubles: Troubles, design: _Design, held_out: NDArray[np.bool_], fitted: Fitted | None, step: int | None
) -> None:
    if fitted is None:
        troubles.note_empty(design.steps[held_out])
        return
    absent = np.setdiff1d(design.actions[held_out], design.actions[~held_out])
    troubles.note(fitted, absent, step)
