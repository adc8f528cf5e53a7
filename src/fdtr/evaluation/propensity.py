"""Propensities: the probability of each action under a site's clinicians, predicted for held-out patients.

    log b(a | x) / b(a' | x) = ⟨β_a − β_a', (1, ψ(x))⟩

This is a multinomial logistic regression on the study's own functions of the state, standardised, with a weak ridge:
one model for each step, or one for all steps with an indicator of each step but the first. It is cross-fitted: a
patient's probabilities come from the model fitted to the other folds.

Unnormalised weights (`pdis`) use the model fitted to all patients instead. 1/b̂ is convex in b̂, so under a model of
other patients the weights average more than 1, by O(p/n) at each step. Maximum likelihood on the patients themselves
balances their own scores, Σ_i (1{a_i = a} − b̂(a | x_i)) ψ(x_i) ≈ 0, and removes that (Hirano, Imbens and Ridder, 2003).

Models are kept as coefficients on (1, ψ(x)), by step, so that a policy can take them along (`fdtr.verified_policy`).
"""

import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.care_models import FLOOR, NEVER, LogisticCare, floored, logistic_chances
from fdtr.evaluation.estimate import Caution, CautionKind, name_steps
from fdtr.evaluation.step_arrays import ByStep, Codes, Folds, StepArrays, at_actions, state_functions
from fdtr.features import FeatureMap

Array = NDArray[np.float64]
PropensitySteps = Literal["auto", "each", "pooled"]
"""One propensity model for "each" step, one "pooled" over steps, or "auto": pooled where a step has too few rows.

Where steps have enough, whoever asks for "auto" tries both (`ways_to_fit`): models of their own find what a pooled one
cannot, and a pooled one exaggerates less what few rows show.
"""

ROWS_PER_COEFFICIENT = 10
"""With fewer rows than this at some step, "auto" fits one model for all steps."""

INVERSE_RIDGE = 10.0
"""C of scikit-learn: Σ log-likelihood − ‖β‖²/(2C) on standardised columns; weak beside a dozen rows."""

ITERATIONS = 200
BINS = 10


@dataclass(frozen=True, eq=False, repr=False)
class Propensities:
    """`chances` (A, n_h) of each step sum to 1 over actions; `in_sample` come from the model fitted to all patients.

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
    actions: Codes
    patients: NDArray[np.intp]
    steps: NDArray[np.intp]


def fit_propensities(
    arrays: StepArrays, features: FeatureMap, folds: Folds, steps: PropensitySteps = "auto", floor: float = FLOOR
) -> Propensities:
    """Probability of every action for every patient and step, cross-fitted and in sample.

    `folds` (n,) are positions 0 … F−1. Problems become cautions of the result; none is raised.
    """
    n_actions, n_folds, n_functions = features.n_actions, int(folds.max(initial=0)) + 1, features.n_functions
    rows, labels = _state_columns(features)
    psi = state_functions(arrays, features)
    designs = _designs(arrays, tuple(functions[rows] for functions in psi), n_actions, steps)
    pooled = steps == "pooled" or len(designs) < arrays.horizon
    problems = _Problems(features.levels, labels, floor)
    frequencies = _frequencies(arrays, n_actions, folds)
    models = np.stack([_constant_care(shares, n_functions, arrays.horizon) for shares in frequencies])
    of_all = _constant_care(np.full(n_actions, 1 / n_actions), n_functions, arrays.horizon)
    for design in designs:
        _write(_fit(design.columns, design.actions, n_actions), design, rows, of_all)
        for fold in range(n_folds):
            held_out = folds[design.patients] == fold
            model = _fit(design.columns[~held_out], design.actions[~held_out], n_actions)
            if held_out.any():
                problems.note(design, held_out, model, None if pooled else int(design.steps[0]))
            _write(model, design, rows, models[fold])
    held_out_chances = [np.empty((n_actions, count)) for count in arrays.counts]
    for h, (functions, chances) in enumerate(zip(psi, held_out_chances, strict=True)):
        for fold in range(n_folds):
            in_fold = folds[: functions.shape[1]] == fold
            chances[:, in_fold] = logistic_chances(models[fold, h], functions[:, in_fold])
    in_sample = [logistic_chances(model, functions) for model, functions in zip(of_all, psi, strict=True)]
    cautions = problems.cautions(arrays, held_out_chances)
    return Propensities(_floored(held_out_chances, floor), _floored(in_sample, floor), pooled, cautions)


def fit_logistic_care(
    arrays: StepArrays, features: FeatureMap, chosen: NDArray[np.bool_], steps: PropensitySteps = "auto"
) -> LogisticCare:
    """The logistic model fitted to the `chosen` patients (n,)."""
    rows, _ = _state_columns(features)
    psi = tuple(functions[rows] for functions in state_functions(arrays, features))
    even = np.full(features.n_actions, 1 / features.n_actions)
    care = _constant_care(even, features.n_functions, arrays.horizon)
    for design in _designs(arrays, psi, features.n_actions, steps):
        train = chosen[design.patients]
        _write(_fit(design.columns[train], design.actions[train], features.n_actions), design, rows, care)
    return LogisticCare(care)


def ways_to_fit(arrays: StepArrays, features: FeatureMap) -> tuple[PropensitySteps, ...]:
    """The logistic models between which held-out patients may choose."""
    n_columns = len(_state_columns(features)[0])
    if arrays.horizon > 1 and _enough_rows(arrays, features.n_actions, n_columns):
        return ("each", "pooled")
    return ("auto",)


def known_propensities(chances: ByStep) -> Propensities:
    """Propensities that need no estimate, as in a trial: `chances` (A, n_h) of each step.

    >>> known_propensities((np.full((2, 3), 0.5),)).pooled
    False
    """
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


def _enough_rows(arrays: StepArrays, n_actions: int, n_columns: int) -> bool:
    """Whether every step that anybody reached has enough rows for a model of its own."""
    needed = ROWS_PER_COEFFICIENT * (n_actions - 1) * (n_columns + 1)
    return all(count >= needed for count in arrays.counts if count)


def _designs(arrays: StepArrays, psi: ByStep, n_actions: int, steps: PropensitySteps) -> list[_Design]:
    """One design for each step, or a pooled one; `psi` has the functions that vary with the state."""
    if steps == "pooled" or (steps == "auto" and not _enough_rows(arrays, n_actions, len(psi[0]))):
        return [_pooled_design(psi, arrays)]
    return [_step_design(psi, arrays, h) for h in range(arrays.horizon)]


def _step_design(psi: ByStep, arrays: StepArrays, h: int) -> _Design:
    count = arrays.counts[h]
    return _Design(psi[h].T, arrays.actions[h], np.arange(count), np.full(count, h))


def _pooled_design(psi: ByStep, arrays: StepArrays) -> _Design:
    steps = np.repeat(np.arange(arrays.horizon), arrays.counts)
    reached = [h for h in range(1, arrays.horizon) if arrays.counts[h]]
    indicators = (steps[:, None] == np.array(reached, dtype=np.intp)).astype(np.float64)
    return _Design(
        np.hstack([np.hstack(psi).T, indicators]),
        np.concatenate(arrays.actions),
        np.concatenate([np.arange(count) for count in arrays.counts]),
        steps,
    )


def _frequencies(arrays: StepArrays, n_actions: int, folds: Folds) -> Array:
    """How often each action was used in the other folds, (F, A): used where a model has no training rows."""
    counts = np.zeros((int(folds.max(initial=0)) + 1, n_actions))
    for actions in arrays.actions:
        np.add.at(counts, (folds[: len(actions)], actions), 1.0)
    others = counts.sum(axis=0) - counts
    total = others.sum(axis=1, keepdims=True)
    return np.where(total > 0, others / np.maximum(total, 1.0), 1.0 / n_actions)


def _floored(by_step: Sequence[Array], floor: float) -> ByStep:
    return tuple(floored(chances, floor) for chances in by_step)


@dataclass(frozen=True, eq=False, repr=False)
class _Model:
    """One fitted model: `coefficients` (A, 1 + p) on (1, columns); `NEVER` for actions that no training row has.

    `constant` (p,) marks columns that do not vary and were left out. `separated` are the positions of actions that a
    linear score separates from all others without error: only the ridge keeps their coefficients finite.
    """

    coefficients: Array
    constant: NDArray[np.bool_]
    separated: tuple[int, ...]
    converged: bool


def _fit(columns: Array, actions: Codes, n_actions: int) -> _Model | None:
    """Fit to `columns` (n, p) and `actions` (n,). None where n = 0."""
    if not len(actions):
        return None
    constant = np.ptp(columns, axis=0) <= 1e-12 * np.maximum(1.0, np.abs(columns).max(axis=0))
    used = np.unique(actions)
    coefficients = np.zeros((n_actions, 1 + columns.shape[1]))
    if len(used) == 1 or constant.all():
        coefficients[:, 0] = _log_odds(np.bincount(actions, minlength=n_actions) / len(actions))
        return _Model(coefficients, constant, (), converged=True)
    scaled = columns[:, ~constant]
    centre, spread = scaled.mean(axis=0), scaled.std(axis=0)
    scaled -= centre
    scaled /= spread
    model, converged = _fit_logistic(scaled, actions)
    slopes, intercepts = model.coef_ / spread, model.intercept_ - (model.coef_ / spread) @ centre
    if len(used) == 2:  # scikit-learn gives the second of two actions alone
        slopes, intercepts = np.vstack([0 * slopes, slopes]), np.append(0.0, intercepts)
    coefficients[:, 0] = NEVER
    coefficients[used, 0] = intercepts
    coefficients[np.ix_(used, 1 + np.flatnonzero(~constant))] = slopes
    separated = _separated(logistic_chances(coefficients, columns.T)[used], used, actions)
    return _Model(coefficients, constant, separated, converged)


def _constant_care(shares: Array, n_functions: int, horizon: int) -> Array:
    """Coefficients (H, A, 1 + m) with which each action has its share (A,), whatever the state."""
    care = np.zeros((horizon, len(shares), 1 + n_functions))
    care[..., 0] = _log_odds(shares)
    return care


def _write(model: _Model | None, design: _Design, rows: Sequence[int], care: Array) -> None:
    """Write a model's coefficients (A, 1 + p), if there is one, into `care` (H, A, 1 + m) at its steps.

    `rows` are the functions that the design's first columns hold; indicators of steps after them move the constants.
    """
    if model is None:
        return
    reached = np.unique(design.steps).tolist()
    later = [step for step in reached if step > 0]
    for h in reached:
        care[h, :, [0, *(1 + row for row in rows)]] = model.coefficients[:, : 1 + len(rows)].T
        if len(reached) > 1 and h in later:
            care[h, :, 0] += model.coefficients[:, 1 + len(rows) + later.index(h)]


def _log_odds(shares: Array) -> Array:
    return np.where(shares > 0, np.log(np.where(shares > 0, shares, 1.0)), NEVER)


def _fit_logistic(columns: Array, actions: Codes) -> tuple[Any, bool]:
    """The model, and whether it was fitted without a warning (no convergence, or a singular system)."""
    from sklearn.linear_model import LogisticRegression  # heavy: `import fdtr.evaluation` stays fast

    model = LogisticRegression(C=INVERSE_RIDGE, solver="newton-cholesky", max_iter=ITERATIONS, tol=1e-8)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        model.fit(columns, actions)
    return model, not raised


def _separated(chances: Array, used: Codes, actions: Codes) -> tuple[int, ...]:
    """Actions for which every patient who got the action has a larger predicted probability than every other."""
    separated = []
    for chance, action in zip(chances, used, strict=True):
        received = actions == action
        if chance[received].min() > chance[~received].max():
            separated.append(int(action))
    return tuple(separated)


_PROBLEMS = {
    CautionKind.CONSTANT_COVARIATE: "{subject}, {steps}: it does not vary there and is left out of the propensity "
    "model.",
    CautionKind.ACTION_ABSENT_IN_FOLD: "Action {subject}, {steps}: it is so rare that a training fold lacks it; its "
    "propensity there is the floor.",
    CautionKind.SEPARATED_ACTION: "Action {subject}, {steps}: the state tells its patients from all others without "
    "error, so that there is no overlap to compare.",
    CautionKind.NO_CONVERGENCE: "The propensity model did not converge ({steps}).",
    CautionKind.TOO_FEW_ROWS: "At {steps} the other folds have no patient there; overall frequencies of actions stand "
    "in for propensities.",
}
"""Problems of a model, in the order in which they are told: about a covariate, an action, or nothing in particular."""


@dataclass
class _Problems:
    """Problems met while fitting: their steps, by kind and by the covariate or action concerned.

    The step None stands for a model of all steps.
    """

    levels: NDArray[Any]
    labels: tuple[str, ...]
    floor: float
    steps: dict[tuple[CautionKind, str], set[int | None]] = field(default_factory=lambda: defaultdict(set))

    def note(self, design: _Design, held_out: NDArray[np.bool_], model: _Model | None, step: int | None) -> None:
        """One fold's model. None: the other folds have no patient at the steps of this design."""
        if model is None:
            self.steps[CautionKind.TOO_FEW_ROWS, ""] |= set(design.steps[held_out].tolist())
            return
        for label, constant in zip(self.labels, model.constant, strict=False):  # step indicators have no label
            if constant:
                self.steps[CautionKind.CONSTANT_COVARIATE, label].add(step)
        for action in np.setdiff1d(design.actions[held_out], design.actions[~held_out]):
            self.steps[CautionKind.ACTION_ABSENT_IN_FOLD, self._name(action)].add(step)
        for action in model.separated:
            self.steps[CautionKind.SEPARATED_ACTION, self._name(action)].add(step)
        if not model.converged:
            self.steps[CautionKind.NO_CONVERGENCE, ""].add(step)

    def cautions(self, arrays: StepArrays, chances: Sequence[Array]) -> tuple[Caution, ...]:
        """Every problem as a sentence; `chances` (A, n_h) of each step are those before any was raised to the floor."""
        counts = np.bincount(np.concatenate(arrays.actions), minlength=len(self.levels))
        cautions = [
            Caution(
                CautionKind.UNUSED_ACTION,
                f"Action {self._name(action)} is never used at this site: its propensity is set to the floor "
                f"{self.floor:g}, and no importance weight can say what it would do.",
            )
            for action in np.flatnonzero(counts == 0).tolist()
        ]
        for problem, sentence in _PROBLEMS.items():
            for (kind, subject), steps in self.steps.items():
                if kind == problem:
                    cautions.append(Caution(kind, sentence.format(subject=subject, steps=_name_steps(steps))))
        return (*cautions, *floor_caution(arrays, chances, self.floor))

    def _name(self, action: int) -> str:
        return f"{self.levels[action]:g}"


def floor_caution(arrays: StepArrays, chances: Sequence[Array], floor: float) -> tuple[Caution, ...]:
    """How many of the actions taken had `chances` (A, n_h) below the floor, if any had."""
    taken = (at_actions(c, a) for c, a in zip(chances, arrays.actions, strict=True))
    below = sum(int((probability < floor).sum()) for probability in taken)
    what = f"{below / max(sum(arrays.counts), 1):.2%} of the actions that were taken had a propensity below {floor:g}"
    return (Caution(CautionKind.FLOORED_PROPENSITY, f"{what} and were given that."),) if below else ()


def _name_steps(steps: Iterable[int | None]) -> str:
    single = [step for step in steps if step is not None]
    return name_steps(single) if single else "all steps"


@dataclass(frozen=True, eq=False)
class Calibration:
    """For each action and tenth of its predicted propensities: the mean `predicted`, the share `observed`, the `count`.

    All are (A, bins), over the rows of all steps; NaN in an empty bin.
    """

    predicted: Array
    observed: Array
    count: NDArray[np.intp]


def calibrate(propensities: Propensities, arrays: StepArrays, bins: int = BINS) -> Calibration:
    """Predicted against observed, in bins of equal numbers of rows, from the smallest propensity to the largest."""
    chances, actions = np.hstack(propensities.chances), np.concatenate(arrays.actions)
    n_actions, rows = chances.shape
    count = np.full(bins, rows // bins) + (np.arange(bins) < rows % bins)
    bin_of = np.repeat(np.arange(bins), count)
    predicted, observed = np.full((n_actions, bins), np.nan), np.full((n_actions, bins), np.nan)
    filled = count > 0
    for action, chance in enumerate(chances):
        order = np.argsort(chance, kind="stable")
        sums = (np.bincount(bin_of, values[order], bins) for values in (chance, (actions == action).astype(float)))
        predicted[action, filled], observed[action, filled] = (total[filled] / count[filled] for total in sums)
    return Calibration(predicted, observed, np.tile(count, (n_actions, 1)))
