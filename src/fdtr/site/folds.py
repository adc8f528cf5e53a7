"""Folds of one site's patients: nobody is judged by what was fitted to them, nor to others of their cluster."""

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import TooFewClusters, TooFewPatients
from fdtr.study import Study
from fdtr.trajectories import Trajectories
from fdtr.tuning import assign_folds

Folds = NDArray[np.intp]

_EVALUATION = b"evaluation"


def tuning_folds(study: Study, rows: Trajectories) -> Folds:
    """The fold of every patient in which settings are tuned."""
    folds = assign_folds(rows.units.to_pylist(), study.learning.seed)
    return folds if rows.clusters is None else _without_gaps(rows, folds)


def evaluation_folds(study: Study, rows: Trajectories, n_folds: int) -> Folds:
    """The fold of every patient in which policies are valued; `n_folds` of them, or fewer where clusters are few."""
    folds = assign_folds(rows.units.to_pylist(), study.learning.seed, n_folds, purpose=_EVALUATION)
    if rows.clusters is not None:
        return _without_gaps(rows, folds)
    if len(np.unique(folds)) < n_folds:
        n = rows.n_patients
        raise TooFewPatients(
            f"Site {rows.site!r} has {n} patient{'s' * (n != 1)}, too few to hold out one fold of {n_folds} after "
            "another. Its policies cannot be valued on its own patients."
        )
    return folds


def _without_gaps(rows: Trajectories, folds: Folds) -> Folds:
    """Folds numbered 0, 1, …: ten clusters leave one of five folds empty every other time, and four do as well."""
    filled = np.unique(folds)
    if len(filled) < 2:
        n = rows.n_clusters
        raise TooFewClusters(
            f"Site {rows.site!r}: {rows.n_patients} patients of {n} cluster{'s' * (n != 1)} lie in one fold: "
            "none can be held out. Give another cluster column in [columns] of the study file, or none."
        )
    return np.searchsorted(filled, folds)
