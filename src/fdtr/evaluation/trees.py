"""Trees: clinicians and outcomes that no smooth function of the state describes.

*Propensities.* A verified value needs right weights where Q is wrong. A decision tree of few leaves on the raw state
and the step finds thresholds and combinations that a logistic regression on ψ does not. Chances in a leaf are
frequencies, shrunken towards those of all rows. All models are cross-fitted, and the one with the largest held-out
likelihood is taken.

*What the richer Q misses.* Boosted trees, fitted to the other folds, predict the residuals of the richer model
(`richer_q`). If the predictions g and the held-out residuals e go together, T = mean of Σ_h e_h g_h over its standard
error, then no model here describes the outcomes, and a value that rests on them cannot be given.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.care_models import FLOOR, CareModel, TreeCare, floored
from fdtr.evaluation.estimate import CautionKind
from fdtr.evaluation.propensity import Propensities, fit_logistic_care, floor_caution, ways_to_fit
from fdtr.evaluation.richer_q import RicherQ, t_statistic
from fdtr.evaluation.step_arrays import ByStep, Folds, StepArrays, at_actions, state_functions
from fdtr.features import FeatureMap

Array = NDArray[np.float64]

LEAVES = (8, 16)
"""Sizes of trees that are tried."""

_LEAST_ROWS, _PRIOR_ROWS = 30, 2
"""Rows in a leaf at least, and how many rows the frequencies of all rows are worth in it."""

_EVERY = 5
"""A policy takes a model of care along, which is chosen on every fifth of its training patients."""

_BOOSTED: dict[str, Any] = {
    "learning_rate": 0.05,
    "max_iter": 60,
    "max_leaf_nodes": 6,
    "min_samples_leaf": 20,
    "l2_regularization": 1.0,
    "early_stopping": False,
    "random_state": 0,
}

_OF_LOGISTIC = {CautionKind.NO_CONVERGENCE, CautionKind.FLOORED_PROPENSITY}


def best_propensities(logistic: Sequence[Propensities], arrays: StepArrays, folds: Folds) -> Propensities:
    """Those of logistic propensities or of a tree that predict held-out actions best.

    A tree's frequencies are shrunken and never say that something is not done at all. So where the first logistic model
    finds an action that the state tells from all others, it is kept.
    """
    first = logistic[0]
    if any(caution.kind is CautionKind.SEPARATED_ACTION for caution in first.cautions):
        return first
    return max([*logistic, *_by_trees(first, arrays, folds)], key=lambda p: _likelihood(p, arrays))


def fit_care(arrays: StepArrays, features: FeatureMap, clusters: NDArray[np.intp] | None = None) -> CareModel:
    """What clinicians do, fitted to all patients by the kind of model that predicts every fifth of them best.

    Patients of a cluster (n,) stay together.
    """
    held_out = (np.arange(arrays.n) if clusters is None else clusters) % _EVERY == 0
    rows, psi = _Rows(arrays, held_out.astype(np.intp)), state_functions(arrays, features)
    ways = ways_to_fit(arrays, features)
    tried: list[CareModel] = [fit_logistic_care(arrays, features, ~held_out, way) for way in ways]
    tried += _fit_trees(rows, rows.folds == 0, features.n_actions)
    best = int(np.argmax([_log_likelihood(care, arrays, psi, held_out) for care in tried]))
    if best < len(ways):
        return fit_logistic_care(arrays, features, np.ones(arrays.n, dtype=bool), ways[best])
    return _fit_trees(rows, np.ones(len(rows.actions), dtype=bool), features.n_actions)[best - len(ways)]


def _log_likelihood(care: CareModel, arrays: StepArrays, psi: ByStep, chosen: NDArray[np.bool_]) -> float:
    """Of the actions that the `chosen` patients (n,) got."""
    total = 0.0
    for h, (states, functions, actions) in enumerate(zip(arrays.states, psi, arrays.actions, strict=True)):
        taken = at_actions(floored(care.chances(states, functions, h)), actions)
        total += float(np.log(taken[chosen[: len(actions)]]).sum())
    return total


def _by_trees(logistic: Propensities, arrays: StepArrays, folds: Folds) -> list[Propensities]:
    """Propensities by trees of each size."""
    rows, n_actions = _Rows(arrays, folds), len(logistic.chances[0])
    by_fold = [_fit_trees(rows, rows.folds != fold, n_actions) for fold in range(int(folds.max(initial=0)) + 1)]
    whole = _fit_trees(rows, np.ones(len(rows.actions), dtype=bool), n_actions)
    return [_of_trees(logistic, arrays, folds, trees, tree) for *trees, tree in zip(*by_fold, whole, strict=True)]


def _of_trees(
    logistic: Propensities, arrays: StepArrays, folds: Folds, by_fold: Sequence[TreeCare], whole: TreeCare
) -> Propensities:
    """Propensities of each patient by the tree that was fitted to the other folds, and those of the `whole`."""
    chances = [np.empty((whole.leaves.shape[1], count)) for count in arrays.counts]
    for h, (states, table) in enumerate(zip(arrays.states, chances, strict=True)):
        for fold, model in enumerate(by_fold):
            in_fold = folds[: states.shape[1]] == fold
            table[:, in_fold] = model.chances(states[:, in_fold], states[:0, in_fold], h)
    held_out = tuple(floored(table) for table in chances)
    cautions = tuple(caution for caution in logistic.cautions if caution.kind not in _OF_LOGISTIC)
    cautions += floor_caution(arrays, chances, FLOOR)
    in_sample = tuple(floored(whole.chances(states, states[:0], h)) for h, states in enumerate(arrays.states))
    return Propensities(held_out, in_sample, True, cautions)


def _fit_trees(rows: "_Rows", train: NDArray[np.bool_], n_actions: int) -> list[TreeCare]:
    """A tree of each size of `LEAVES`, fitted to the rows in `train`; a single leaf if there are too few.

    The best leaf is split first, so that smaller trees are the beginning of the largest, its first nodes.
    """
    from sklearn.tree import DecisionTreeClassifier  # heavy: `import fdtr.evaluation` stays fast

    actions = rows.actions[train]
    usual = np.bincount(actions, minlength=n_actions) / max(len(actions), 1)
    if len(actions) < 2 * _LEAST_ROWS:
        shares = usual[None] if len(actions) else np.full((1, n_actions), 1 / n_actions)
        return [TreeCare(np.zeros((1, 4)), shares)] * len(LEAVES)
    model = DecisionTreeClassifier(
        criterion="log_loss", max_leaf_nodes=max(LEAVES), min_samples_leaf=_LEAST_ROWS, random_state=0
    ).fit(rows.columns[train], actions)
    tree = model.tree_
    counts = np.zeros((tree.node_count, n_actions))
    counts[:, model.classes_] = np.rint(tree.value[:, 0] * tree.n_node_samples[:, None])
    chances = (counts + _PRIOR_ROWS * usual) / (counts.sum(axis=1, keepdims=True) + _PRIOR_ROWS)
    nodes, trees = np.arange(tree.node_count), []
    for size in LEAVES:
        kept = nodes[: 2 * size - 1]
        leaf = (tree.children_left < 0) | (tree.children_left >= len(kept))
        left, right = (np.where(leaf, nodes, child) for child in (tree.children_left, tree.children_right))
        # Columns are single precision there, and thresholds lie between two values: rounding them decides no row else.
        splits = np.column_stack([np.maximum(tree.feature, 0), tree.threshold, left, right])
        trees.append(TreeCare(splits[kept], chances[kept]))
    return trees


def unexplained(richer: RicherQ, arrays: StepArrays, folds: Folds, clusters: NDArray[np.intp] | None) -> float:
    """T of the residuals that the richer model leaves: large where trees predict them."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    rows = _Rows(arrays, folds)
    indicators = (rows.actions[:, None] == np.unique(rows.actions)).astype(np.float64)
    columns = np.hstack([rows.columns, indicators, rows.actions[:, None]])
    residuals = np.concatenate([row[:count] for row, count in zip(richer.residuals, arrays.counts, strict=True)])
    summands = np.zeros(arrays.n)
    with threadpool_limits(1):
        for fold in np.unique(rows.folds):
            train, held_out = rows.folds != fold, rows.folds == fold
            model = HistGradientBoostingRegressor(**_BOOSTED).fit(columns[train], residuals[train])
            np.add.at(summands, rows.patients[held_out], residuals[held_out] * model.predict(columns[held_out]))
    return t_statistic(summands, clusters)


class _Rows:
    """All rows, one step after another: `columns` (the raw state and the step), `actions`, `patients` and `folds`."""

    def __init__(self, arrays: StepArrays, folds: Folds) -> None:
        parts = [np.column_stack([x.T, np.full(x.shape[1], float(h))]) for h, x in enumerate(arrays.states)]
        self.columns = np.vstack(parts)
        self.actions = np.concatenate(arrays.actions)
        self.patients = np.concatenate([np.arange(count) for count in arrays.counts])
        self.folds = folds[self.patients]


def _likelihood(propensities: Propensities, arrays: StepArrays) -> float:
    pairs = zip(propensities.chances, arrays.actions, strict=True)
    return float(sum(np.log(at_actions(table, actions)).sum() for table, actions in pairs))
