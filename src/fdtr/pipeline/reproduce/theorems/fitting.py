"""Fit all sites of a world, alone and together, from arrays: what an experiment does thousands of times."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fdtr.features import FeatureMap
from fdtr.learners.backward import Fit, Settings, sums_of
from fdtr.learners.federated import Others, fit_federated
from fdtr.learners.local import fit_local
from fdtr.site import read_trajectories
from fdtr.study import Study
from fdtr.summary import Sums
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]

FAILURE_PROBABILITY = 0.99
"""ξ of the paper's Section 5.1."""


def settings(pessimism: float, ridge: float, misspecification: float = 0.0) -> Settings:
    """c, λ and η, with the paper's ξ."""
    return Settings(pessimism, ridge, FAILURE_PROBABILITY, misspecification)


@dataclass(frozen=True, eq=False)
class Patients:
    """The patients of every site, and the `features` that a study makes of them."""

    features: FeatureMap
    sites: tuple[Trajectories, ...]


def read_patients(study: dict[str, Any], table: dict[str, NDArray[Any]]) -> Patients:
    """A simulated table as its study reads it."""
    checked = Study.model_validate(study)
    rows = read_trajectories(pa.table(table), checked)
    return Patients(checked.feature_map, tuple(rows.by_site().values()))


@dataclass(frozen=True, eq=False)
class Together:
    """LDTR and FDTR of every site: `local`, from whose values the messages came, and `federated`."""

    local: tuple[Fit, ...]
    federated: tuple[Fit, ...]


def fit_together(patients: Patients, learning: Settings, messages: Settings | None = None) -> Together:
    """Algorithms 1 and 2 at every site, with w = 1.

    `messages` are the settings of the local fits that messages come from; those of `learning` where none are given.
    """
    local = tuple(fit_local(rows, patients.features, messages or learning) for rows in patients.sites)
    sent = [sums_of(fit, patients.features.n_shared) for fit in local]
    return Together(local, _fit_with_messages(patients, learning, sent))


def _fit_with_messages(patients: Patients, learning: Settings, messages: Sequence[Sums]) -> tuple[Fit, ...]:
    """Algorithm 2 at every site from the total of all messages, less the site's own."""
    total = messages[0]
    for more in messages[1:]:
        total = total + more
    found = []
    for rows, own in zip(patients.sites, messages, strict=True):
        rest = total - own
        others = Others(rest.schur, rest.schur_moment, rest.schur_reward, float(rest.n[0]))
        found.append(fit_federated(rows, patients.features, learning, others))
    return tuple(found)
