"""Small patients for tests of evaluation: ragged, with random chances of a target and of clinicians."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import paper_algorithms as paper
from fdtr.evaluation.fitted_q import OutcomeSums, TransitionSums, sum_outcomes, sum_transitions
from fdtr.evaluation.importance import Weights, weigh
from fdtr.evaluation.step_arrays import ByStep, Design, StepArrays, state_functions, step_arrays
from fdtr.features import FeatureMap
from fdtr.study import Study
from fdtr.trajectories import Trajectories
from random_tables import make_sites, make_study

Array = NDArray[np.float64]
ENDS = {"death": 0.0, "discharge": 1.0}


@dataclass
class Patients:
    """One site, folds, and chances (A, n_h) of every step for a target and for clinicians."""

    study: Study
    rows: Trajectories
    features: FeatureMap
    arrays: StepArrays
    psi: ByStep
    folds: NDArray[np.intp]
    target: ByStep
    behaviour: ByStep

    @property
    def embeddings(self) -> Array:
        return self.features.embeddings

    @property
    def design(self) -> Design:
        return Design(self.arrays, self.psi, self.embeddings, self.folds)

    @property
    def weights(self) -> Weights:
        return weigh(self.arrays, self.target, self.behaviour)

    def sums(self, folds: NDArray[np.intp] | None = None) -> tuple[OutcomeSums, TransitionSums]:
        design = self.design if folds is None else replace(self.design, folds=folds)
        return sum_outcomes(design), sum_transitions(design, self.target)


def make_patients(n: int = 40, seed: int = 0, n_folds: int = 4, ragged: bool = True, **settings: Any) -> Patients:
    study = make_study(**({"ends": ENDS} if ragged else {}), **settings)
    rows = make_sites(study, {"a": n}, seed, ragged=ragged)["a"]
    arrays = step_arrays(rows)
    rng = np.random.default_rng([seed, 1])
    features = study.feature_map
    return Patients(
        study=study,
        rows=rows,
        features=features,
        arrays=arrays,
        psi=state_functions(arrays, features),
        folds=np.arange(n) % n_folds,
        target=random_chances(rng, arrays, features.n_actions),
        behaviour=random_chances(rng, arrays, features.n_actions),
    )


def random_chances(rng: np.random.Generator, arrays: StepArrays, n_actions: int) -> ByStep:
    return tuple(rng.dirichlet(np.full(n_actions, 3.0), count).T for count in arrays.counts)


def each_patient(patients: Patients) -> list[list[tuple[int, float]]]:
    """By patient, by step: the action and the mapped reward, the worth of a last row's missing steps added."""
    by_patient: list[list[tuple[int, float]]] = [[] for _ in range(patients.arrays.n)]
    for h in range(patients.rows.horizon):
        for chunk in patients.rows.step(h).chunks(10**6):
            going_on = chunk.next_states.shape[1]
            for i, (action, reward) in enumerate(zip(chunk.actions, chunk.rewards, strict=True)):
                worth = chunk.ended_value[i - going_on] if i >= going_on else 0.0
                by_patient[i].append((int(action), float(reward + worth)))
    return by_patient


def literal_theta(patients: Patients, ridge: float = 1e-3, kept: NDArray[np.bool_] | None = None) -> Array:
    """θ of every step by dense regressions of r + Q(x', π), from the patients that are `kept`."""
    features = patients.features
    theta: list[Array] = [np.zeros(0)] * 3
    following: Array | None = None
    for h in reversed(range(3)):
        dense = paper.dense(patients.rows, features)[h]
        n, k = len(dense.reward), len(dense.following)
        y = dense.reward.copy()
        y[k:] += dense.ended
        for i in range(k):
            if following is not None:
                y[i] += sum(patients.target[h + 1][a, i] * (dense.following[i, a] @ following) for a in range(3))
        rows = np.arange(n) if kept is None else np.flatnonzero(kept[:n])
        phi = dense.phi[rows]
        following = np.linalg.solve(phi.T @ phi + ridge * np.eye(phi.shape[1]), phi.T @ y[rows])
        theta[h] = following
    return np.array(theta)
