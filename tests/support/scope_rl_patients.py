"""Frozen patients on whom fdtr and SCOPE-RL were found to agree. `make agree-scope-rl` asks SCOPE-RL again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.evaluation.importance import doubly_robust, per_decision, step_weighted, weigh, weighted_doubly_robust
from fdtr.evaluation.step_arrays import StepArrays

Array = NDArray[np.float64]

PATIENTS = Path(__file__).parents[1] / "evaluation" / "scope_rl" / "patients.csv"
VALUES = PATIENTS.with_name("values.json")
TOLERANCE = 1e-8
"""Of a value in [0, 4]. SCOPE-RL adds 1e-10 to the mean weight that it normalises by, so not to the last digits."""


@dataclass(frozen=True, eq=False)
class Frozen:
    """n patients over H steps, none of whom left early, and A actions.

    `actions` and `rewards` are (n, H); `behaviour`, `q` and each of `targets` are (n, H, A).
    """

    actions: NDArray[np.intp]
    rewards: Array
    behaviour: Array
    q: Array
    targets: dict[str, Array]


def read_patients() -> Frozen:
    table = np.loadtxt(PATIENTS, delimiter=",", skiprows=1)
    steps = table.reshape(int(table[:, 0].max()), -1, table.shape[1])
    return Frozen(
        actions=steps[..., 2].astype(np.intp),
        rewards=steps[..., 3],
        behaviour=steps[..., 4:7],
        q=steps[..., 7:10],
        targets={"stochastic": steps[..., 10:13], "deterministic": steps[..., 13:16]},
    )


def read_values() -> dict[str, Any]:
    return json.loads(VALUES.read_text())


def fdtr_values(patients: Frozen) -> dict[str, dict[str, float]]:
    """What fdtr finds, by target and method."""
    rewards, actions = patients.rewards.T, tuple(patients.actions.T)
    arrays = StepArrays(rewards, actions, states=tuple(np.zeros((0, len(codes))) for codes in actions))
    behaviour, q = _by_step(patients.behaviour), _by_step(patients.q)
    values = {}
    for name, chances in patients.targets.items():
        target = _by_step(chances)
        weights = weigh(arrays, target, behaviour)
        values[name] = {
            "pdis": per_decision(arrays, weights).value,
            "wis": step_weighted(arrays, weights).value,
            "dr": doubly_robust(arrays, weights, q, target).value,
            "wdr": weighted_doubly_robust(arrays, weights, q, target).value,
        }
    return values


def _by_step(values: Array) -> tuple[Array, ...]:
    """(A, n) of every step from (n, H, A)."""
    return tuple(values.transpose(1, 2, 0))
