"""Fit all sites of a world, alone and together, from arrays: what an experiment does thousands of times."""

import operator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fdtr import Study, Trajectories, read_trajectories
from fdtr.learners import Fit, NoiseUnits, Others, Settings, fit_federated, fit_local, sums_of

Array = NDArray[np.float64]

FAILURE_PROBABILITY = 0.99
"""ξ of the paper's Section 5.1."""


MESSAGE_PESSIMISM = 0.0005
"""c of the local fits that messages come from where pessimism is in units of noise."""


def settings(pessimism: float | NoiseUnits, ridge: float, misspecification: float = 0.0) -> Settings:
    """Pessimism, λ and η, with the paper's ξ."""
    return Settings(pessimism, ridge, FAILURE_PROBABILITY, misspecification)


@dataclass(frozen=True, eq=False)
class Patients:
    """The patients of every site, and the `study` that says which features are made of them."""

    study: Study
    sites: tuple[Trajectories, ...]


def read_patients(study: dict[str, Any], table: dict[str, NDArray[Any]]) -> Patients:
    """A simulated table as its study reads it."""
    checked = Study.model_validate(study)
    rows = read_trajectories(pa.table(table), checked)
    return Patients(checked, tuple(rows.by_site().values()))


@dataclass(frozen=True, eq=False)
class Together:
    """LDTR and FDTR of every site: `local`, from whose values the messages came, and `federated`."""

    local: tuple[Fit, ...]
    federated: tuple[Fit, ...]


def fit_together(patients: Patients, learning: Settings, messages: Settings | None = None) -> Together:
    """Algorithms 1 and 2 at every site, with w = 1.

    `messages` are the settings of the local fits that messages come from. Where none are given, they are those of
    `learning`, but always with a c: noise units never enter a message.
    """
    features = patients.study.feature_map
    if messages is None:
        in_noise = isinstance(learning.pessimism, NoiseUnits)
        messages = replace(learning, pessimism=MESSAGE_PESSIMISM) if in_noise else learning
    local = tuple(fit_local(rows, features, messages) for rows in patients.sites)
    sums = [sums_of(fit, features.n_shared) for fit in local]
    total = reduce(operator.add, sums)
    federated = []
    for rows, own in zip(patients.sites, sums, strict=True):
        rest = total - own
        others = Others(rest.schur, rest.schur_moment, rest.schur_reward, float(rest.n[0]))
        federated.append(fit_federated(rows, features, learning, others))
    return Together(local, tuple(federated))
