"""One multinomial logistic regression, and what was wrong with its data."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.intp]

INVERSE_RIDGE = 10.0
"""C of scikit-learn: Σ log-likelihood − ‖β‖²/(2C) on standardised columns; weak beside a dozen rows."""

ITERATIONS = 200


@dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """`chances` (A, c) predicted for new rows; 0 for actions that no training row has.

    `constant` (p,) marks columns that do not vary and were left out; `separated` are the positions of actions that a
    linear score tells from all others without error, so that only the ridge keeps their coefficients finite.
    """

    chances: Array
    constant: NDArray[np.bool_]
    separated: tuple[int, ...]
    converged: bool


def fit_and_predict(columns: Array, actions: Codes, new_columns: Array, n_actions: int) -> Fitted | None:
    """Fit to `columns` (n, p) and `actions` (n,), and predict for `new_columns` (c, p). None where n = 0."""
    if not len(actions):
        return None
    constant = np.ptp(columns, axis=0) <= 1e-12 * np.maximum(1.0, np.abs(columns).max(axis=0))
    used = np.unique(actions)
    chances = np.zeros((n_actions, len(new_columns)))
    if len(used) == 1 or constant.all():
        chances[used] = (np.bincount(actions, minlength=n_actions)[used] / len(actions))[:, None]
        return Fitted(chances, constant, (), converged=True)
    centre, spread = columns[:, ~constant].mean(axis=0), columns[:, ~constant].std(axis=0)
    train, new = ((part[:, ~constant] - centre) / spread for part in (columns, new_columns))
    model, converged = _fit(train, actions)
    chances[used] = model.predict_proba(new).T
    separated = _separated(model.predict_proba(train).T, used, actions)
    return Fitted(chances, constant, separated, converged)


def _fit(columns: Array, actions: Codes) -> tuple[Any, bool]:
    """The model, and whether it was fitted without a warning: of no convergence, or of a singular system."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=INVERSE_RIDGE, solver="newton-cholesky", max_iter=ITERATIONS, tol=1e-8)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(columns, actions)
    return model, not told


def _separated(chances: Array, used: Codes, actions: Codes) -> tuple[int, ...]:
    """Actions whose every patient has a larger chance of it than any other patient."""
    found = []
    for chance, action in zip(chances, used, strict=True):
        own = actions == action
        if chance[own].min() > chance[~own].max():
            found.append(int(action))
    return tuple(found)
